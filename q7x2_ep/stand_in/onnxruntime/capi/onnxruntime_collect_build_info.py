"""What the package was built with."""

from __future__ import annotations

from typing import Optional


def find_cudart_versions(
    build_env: bool = False, build_cuda_version: Optional[str] = None
) -> list[int]:
    """None: it was built without CUDA, and uses none."""
    return []
