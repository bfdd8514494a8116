"""Which package this is."""

from q7x2_ep.api import package_name, version  # noqa: F401

__version__ = version
