"""silero-vad, with its own models: where there is speech, window by window and as stretches, at
16 and 8 kHz, for each of the models that it can load in onnxruntime.
"""

import torch
from harness import SENTENCES, measure
from silero_vad import get_speech_timestamps, load_silero_vad
from speech import speech

WAVE = speech(SENTENCES[20:25])
SAMPLES = {16000: torch.from_numpy(WAVE), 8000: torch.from_numpy(WAVE[::2].copy())}
CASES = {"opset 16": (16000, 8000), "opset 15": (16000,)}


def load() -> dict:
    return {
        "opset 16": load_silero_vad(onnx=True, opset_version=16),
        "opset 15": load_silero_vad(onnx=True, opset_version=15),
        "sequence": load_silero_vad(sequence=True),
    }


def work(models: dict) -> dict:
    results = {}
    for name, rates in CASES.items():
        for rate in rates:
            model, samples = models[name], SAMPLES[rate]
            model.reset_states()
            probabilities = model.audio_forward(samples, rate).numpy()
            for i, each in enumerate(probabilities.ravel()):
                results[f"{name} {rate} window {i}"] = float(each)
            found = get_speech_timestamps(samples, model, sampling_rate=rate)
            results[f"{name} {rate} stretches"] = [tuple(each.values()) for each in found]
    return results


measure(load, work)
