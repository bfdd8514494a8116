"""How many cores there are, and how many threads a session takes that leaves it open."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Union

from q7x2_ep import knobs

Path = Union[str, "os.PathLike[str]"]  # pathlib takes 3 ms to import

CPUS = "/sys/devices/system/cpu"
CGROUPS = "/sys/fs/cgroup"
MEMBERSHIP = "/proc/self/cgroup"


def default_threads() -> int:
    """The knob THREADS, else one for each core."""
    wanted = int(knobs.get("THREADS"))
    return wanted if wanted > 0 else available_cores()


def available_cores(thread: int = 0) -> int:
    """The physical cores that affinity and cgroup quota allow. thread: its number, 0 for this one,
    that of the process for its first.
    """
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cores = _known_cores(frozenset(os.sched_getaffinity(thread)))
    return max(1, min([cores, *quotas()]))


def physical_cores(cpus: Iterable[int], folder: Path = CPUS) -> int:
    """How many cores these CPUs are: hyperthreads of one core share its arithmetic. A core of less
    than half the capacity of the best would keep the others waiting, and does not count.
    """
    cores: dict[str, int] = {}
    for cpu in cpus:
        siblings = _read(f"{folder}/cpu{cpu}/topology/thread_siblings_list") or str(cpu)
        cores[siblings] = int(_read(f"{folder}/cpu{cpu}/cpu_capacity") or 0)
    best = max(cores.values(), default=0)
    return sum(2 * capacity >= best for capacity in cores.values())


_known_cores = lru_cache(maxsize=64)(physical_cores)  # of 128 CPUs that is 256 files


def quotas(membership: Path = MEMBERSHIP, folder: Path = CGROUPS) -> Iterator[int]:
    """CPUs' worth of time, rounded up, that the cgroups above this process grant, from its own to
    the root; of either version.
    """
    for line in _read(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = os.path.join(folder, "cpu") if controllers else folder
        names = [name for name in path.split("/") if name]
        for depth in range(len(names), -1, -1):
            place = os.path.join(root, *names[:depth])
            limits = _read(f"{place}/cpu.max").split() or [
                _read(f"{place}/cpu.cfs_{what}_us") for what in ("quota", "period")
            ]
            if limits[0].isdigit() and int(limits[0]) > 0:
                yield -(-int(limits[0]) // int(limits[1]))


def _read(path: Path) -> str:
    """What the file says; nothing where there is none."""
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""
