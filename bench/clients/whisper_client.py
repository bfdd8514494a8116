"""faster-whisper's voice detection, with the model in its wheel."""

from faster_whisper.vad import VadOptions, get_speech_timestamps, get_vad_model
from harness import SENTENCES, measure
from speech import speech

SAMPLES = speech(SENTENCES[20:30])


def work(model) -> dict:
    padded = SAMPLES[: len(SAMPLES) // 512 * 512]
    results = {f"window {i}": float(each) for i, each in enumerate(model(padded).ravel())}
    found = get_speech_timestamps(SAMPLES, VadOptions(min_silence_duration_ms=200))
    return {**results, "stretches": [tuple(each.values()) for each in found]}


measure(get_vad_model, work)
