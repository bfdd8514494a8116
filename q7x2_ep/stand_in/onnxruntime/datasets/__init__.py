"""The example models of onnxruntime's own package, where it is installed."""

from pathlib import Path

import onnxruntime


def get_example(name: str) -> str:
    """The path of an example. Raises: FileNotFoundError where it is not there."""
    for folder in onnxruntime.__path__:
        found = Path(folder, "datasets", name)
        if found.is_file():
            return str(found)
    raise FileNotFoundError(
        f"Unable to find example {name!r}: examples come with onnxruntime's own package"
    )
