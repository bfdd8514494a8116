"""Threads by default: physical cores, quotas of nested cgroups, the variables that say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from q7x2_ep import knobs
from q7x2_ep.backend.cpu.cores import default_threads, physical_cores, quotas
from q7x2_ep.errors import BindingError


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def machine(folder: Path, siblings: list[str], capacities: list[int]) -> Path:
    for cpu, (shared, capacity) in enumerate(zip(siblings, capacities)):
        write(folder / f"cpu{cpu}" / "topology" / "thread_siblings_list", shared)
        write(folder / f"cpu{cpu}" / "cpu_capacity", str(capacity))
    return folder


def test_hyperthreads_count_once(tmp_path):
    folder = machine(tmp_path, ["0,2", "1,3", "0,2", "1,3"], [1024] * 4)
    assert physical_cores(range(4), folder) == 2
    assert physical_cores([0, 2], folder) == 1


def test_little_cores_do_not_count(tmp_path):
    folder = machine(tmp_path, list("01234567"), [400] * 4 + [900] * 3 + [1024])
    assert physical_cores(range(8), folder) == 4
    assert physical_cores(range(4), folder) == 4  # all there is


def test_a_machine_that_says_nothing(tmp_path):
    assert physical_cores(range(3), tmp_path) == 3
    assert list(quotas(tmp_path / "none", tmp_path)) == []


def test_quotas_of_nested_groups(tmp_path):
    write(tmp_path / "membership", "0::/a/b")
    write(tmp_path / "a" / "cpu.max", "250000 100000")
    write(tmp_path / "a" / "b" / "cpu.max", "max 100000")
    assert list(quotas(tmp_path / "membership", tmp_path)) == [3]


def test_quotas_of_the_first_version(tmp_path):
    write(tmp_path / "membership", "4:memory:/x\n2:cpu,cpuacct:/a")
    for place, quota in ((Path("a"), "50000"), (Path(), "-1")):
        write(tmp_path / "cpu" / place / "cpu.cfs_quota_us", quota)
        write(tmp_path / "cpu" / place / "cpu.cfs_period_us", "100000")
    assert list(quotas(tmp_path / "membership", tmp_path)) == [1]


def test_variables(monkeypatch):
    for variable in ("Q7X2_THREADS", *knobs.KNOBS["THREADS"].others):
        monkeypatch.delenv(variable, raising=False)
    by_default = default_threads()
    assert by_default >= 1
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")  # not a number: for OpenMP alone
    assert default_threads() == by_default
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert default_threads() == 5
    monkeypatch.setenv("ORT_INTRA_OP_NUM_THREADS", "6")
    assert default_threads() == 6
    monkeypatch.setenv("Q7X2_THREADS", "7")
    assert default_threads() == 7
    monkeypatch.setenv("Q7X2_THREADS", "many")
    with pytest.raises(BindingError, match="Q7X2_THREADS"):
        default_threads()
