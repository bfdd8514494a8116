"""Make the tiny models of this folder: architecture x attention x exporter, with and without cache.

Run: python tests/models/make.py [--model llama]. It needs torch, transformers and onnxscript, and
takes 20 minutes for all. What cannot be exported is listed in unavailable.txt.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT)]

import zoo  # noqa: E402  (bench is a folder of scripts, not a package)

from tests.models import files  # noqa: E402

UNAVAILABLE = files.FOLDER / "unavailable.txt"


def main() -> None:
    parser = argparse.ArgumentParser(description="Export the tiny models of tests/models.")
    parser.add_argument(
        "--model", action="append", choices=zoo.ARCHITECTURES, help="may be repeated"
    )
    names = parser.parse_args().model or list(zoo.ARCHITECTURES)
    failed = {}
    if UNAVAILABLE.exists():
        rows = (line.split(maxsplit=1) for line in UNAVAILABLE.read_text().splitlines())
        failed = {name: why for name, why in rows if name.split(".")[0] not in names}
    for name in names:
        for attention in zoo.ATTENTION:
            for exporter, opset in zoo.EXPORTS:
                for cache in (False, True)[: 1 + bool(zoo.ARCHITECTURES[name].caches)]:
                    file = zoo.file_name(name, exporter, opset, attention, cache)
                    try:
                        make(file, zoo.tiny(name), exporter, opset, attention, cache)
                    except Exception as error:  # an exporter may fail in any way
                        failed[file[: -len(".onnx")]] = zoo.reason(error)
                        (files.FOLDER / (file + ".gz")).unlink(missing_ok=True)
    width = max(map(len, failed), default=0) + 2
    UNAVAILABLE.write_text("".join(f"{f:{width}}{why}\n" for f, why in sorted(failed.items())))
    sizes = [path.stat().st_size for path in files.select(cache=True)]
    print(f"{len(sizes)} files, {sum(sizes) >> 10} KiB; {len(failed)} could not be exported")


def make(
    file: str, model: zoo.Model, exporter: str, opset: int, attention: str, cache: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / file
        zoo.export(model, plain, exporter, opset, attention, cache)
        weights = [p.detach().numpy() for p in zoo.build(model, attention).parameters()]
        packed = files.FOLDER / (file + ".gz")
        files.write(packed, plain.read_bytes(), weights)
        print(f"{packed.name:50} {packed.stat().st_size:6} bytes", flush=True)


if __name__ == "__main__":
    main()
