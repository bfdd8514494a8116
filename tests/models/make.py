"""Make the tiny models of this folder: architecture x attention x exporter, with and without cache,
and some of them in 16 bits.

Run: python tests/models/make.py [--model llama]. It needs torch, transformers and onnxscript, and
takes 20 minutes for all. What cannot be exported is listed in unavailable.txt.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT)]

import zoo  # noqa: E402  (bench is a folder of scripts, not a package)

from tests.models import files  # noqa: E402

UNAVAILABLE = files.FOLDER / "unavailable.txt"
HALVES = ("bert", "gpt2", "llama", "vit", "whisper-encoder", "whisper-decoder")


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
        for how in variants(name):
            file = zoo.file_name(name, *how)
            try:
                make(file, zoo.tiny(name), *how)
            except Exception as error:  # an exporter may fail in any way
                failed[file[: -len(".onnx")]] = zoo.reason(error)
                (files.FOLDER / (file + ".gz")).unlink(missing_ok=True)
    width = max(map(len, failed), default=0) + 2
    UNAVAILABLE.write_text("".join(f"{f:{width}}{why}\n" for f, why in sorted(failed.items())))
    sizes = [path.stat().st_size for path in files.select(cache=True, halves=True)]
    print(f"{len(sizes)} files, {sum(sizes) >> 10} KiB; {len(failed)} could not be exported")


def variants(name: str) -> Iterator[tuple[str, int, str, bool, str]]:
    """Exporter, opset, attention, cache and dtype."""
    caches = (False, True)[: 1 + bool(zoo.ARCHITECTURES[name].caches)]
    for attention, (exporter, opset), cache in product(zoo.ATTENTION, zoo.EXPORTS, caches):
        yield exporter, opset, attention, cache, "float32"
    halves = ("float16", "bfloat16") if name in HALVES else ()
    for dtype, (exporter, opset) in product(halves, zoo.EXPORTS):
        attention = "eager" if exporter == "legacy" else "sdpa"  # it mixes dtypes in the other
        cache = bool(zoo.ARCHITECTURES[name].caches) and opset == 20
        yield exporter, opset, attention, cache, dtype


def make(
    file: str, model: zoo.Model, exporter: str, opset: int, attention: str, cache: bool, dtype: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / file
        zoo.export(model, plain, exporter, opset, attention, cache, dtype)
        module = zoo.build(model, attention, dtype)
        weights = [p.detach().float().numpy() for p in module.parameters()]
        packed = files.FOLDER / (file + ".gz")
        files.write(packed, plain.read_bytes(), weights)
        print(f"{packed.name:50} {packed.stat().st_size:6} bytes", flush=True)


if __name__ == "__main__":
    main()
