"""From a file of arrays, as numpy.savez writes it, to a file of a LoRA adapter."""

from __future__ import annotations

import argparse
import sys

import numpy as np

from q7x2_ep.api import AdapterFormat, OrtValue


def get_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--npz_file_path", type=str, required=True)
    parser.add_argument("--output_file_path", type=str, required=True)
    parser.add_argument("--adapter_version", type=int, required=True)
    parser.add_argument("--model_version", type=int, required=True)
    return parser.parse_args()


def export_lora_parameters(
    npz_file_path: str, adapter_version: int, model_version: int, output_file_path: str
) -> None:
    """Writes the arrays, by their names, as parameters of an adapter."""
    adapter = AdapterFormat()
    adapter.set_adapter_version(adapter_version)
    adapter.set_model_version(model_version)
    with np.load(npz_file_path) as arrays:
        values = {name: OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}
    adapter.set_parameters(values)
    adapter.export_adapter(output_file_path)


def main() -> int:
    given = get_args()
    export_lora_parameters(
        given.npz_file_path, given.adapter_version, given.model_version, given.output_file_path
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
