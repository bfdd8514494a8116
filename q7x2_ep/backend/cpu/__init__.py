"""The CPU backend: the C library, and the executor that runs plans on it."""
