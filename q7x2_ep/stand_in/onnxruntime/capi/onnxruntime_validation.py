"""Checks of the installation: here there is nothing to check."""

from q7x2_ep.api import cuda_version, package_name, version


def check_distro_info() -> None:
    """Every platform that q7x2_ep has a library for will do."""


def get_package_name_and_version_info() -> "tuple[str, str, str]":
    """(package, version, version of CUDA)."""
    return package_name, version, cuda_version
