"""magika, with its own model: the content type of every file of this repository and of Python's
standard library. The model is judged beside, since its scores are not well conditioned.
"""

import sysconfig
from pathlib import Path

from harness import REPOSITORY, Recorder, measure
from magika import Magika

FOLDERS = (REPOSITORY, Path(sysconfig.get_paths()["stdlib"]))
SKIP = {"site-packages", "__pycache__", "build", "results"}  # and hidden ones: tests write there
PATHS = [
    path
    for folder in FOLDERS
    for path in sorted(folder.rglob("*"))
    for parts in [path.relative_to(folder).parts]
    if path.is_file() and not SKIP.intersection(parts)
    if not any(part.startswith(".") for part in parts)
]


def work(magika: Magika) -> dict:
    found = magika.identify_paths(PATHS)
    return {
        str(each.path): (str(each.output.label), str(each.dl.label), each.prediction.score)
        for each in found
    }


def record(magika: Magika) -> tuple:
    session = magika._onnx_session
    magika._onnx_session = recorder = Recorder(session)
    magika.identify_paths(PATHS)
    return str(magika._model_path), recorder.calls


measure(Magika, work, record)
