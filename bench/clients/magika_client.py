"""magika, with its own model: the content type of every file of this repository and of Python's
standard library.
"""

import sysconfig
from pathlib import Path

from harness import REPOSITORY, measure
from magika import Magika

FOLDERS = (REPOSITORY, Path(sysconfig.get_paths()["stdlib"]))
SKIP = {"site-packages", "__pycache__", ".git", "build", "results"}
PATHS = [
    path
    for folder in FOLDERS
    for path in sorted(folder.rglob("*"))
    if path.is_file() and not SKIP.intersection(path.parts)
]


def work(magika: Magika) -> dict:
    found = magika.identify_paths(PATHS)
    return {
        str(each.path): (str(each.output.label), str(each.dl.label), each.prediction.score)
        for each in found
    }


measure(Magika, work)
