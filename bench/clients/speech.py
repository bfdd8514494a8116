"""Something to listen to: espeak-ng, from the wheel espeakng-loader, reads sentences aloud."""

from __future__ import annotations

import ctypes

import espeakng_loader
import numpy as np

_RETRIEVAL, _UTF8, _RATE = 1, 1, 22050


def speech(sentences: list[str], rate: int = 16000, pause: float = 0.8) -> np.ndarray:
    """float32 samples in -1..1, a pause after each sentence."""
    espeak = ctypes.CDLL(espeakng_loader.get_library_path())
    assert espeak.espeak_Initialize(_RETRIEVAL, 0, espeakng_loader.get_data_path().encode(), 0) > 0
    samples: list[np.ndarray] = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
    def collect(wave, count, events):
        if wave and count:
            samples.append(np.ctypeslib.as_array(wave, (count,)).astype(np.float32) / 32768)
        return 0

    espeak.espeak_SetSynthCallback(collect)
    espeak.espeak_SetVoiceByName(b"en")
    noise = np.random.default_rng(0)
    for sentence in sentences:
        text = sentence.encode() + b"\0"
        espeak.espeak_Synth(text, len(text), 0, 1, 0, _UTF8, None, None)
        espeak.espeak_Synchronize()
        samples.append(noise.normal(0, 1e-3, int(pause * _RATE)).astype(np.float32))
    wave = np.concatenate(samples)
    at = np.arange(0, len(wave), _RATE / rate)
    return np.interp(at, np.arange(len(wave)), wave).astype(np.float32)
