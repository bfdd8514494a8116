"""The collector of cycles waits while models are compiled, and goes on as it was."""

from __future__ import annotations

import gc
import os
import threading

import pytest

import q7x2_ep
from q7x2_ep import collector, errors
from tests.api.models import ONES, info, one

RELU = one("Relu", info("x", (2, 3)))


@pytest.fixture(params=[True, False], ids=["runs", "is off"])
def runs(request):
    """Whether the collector runs before; it does behind each test."""
    (gc.enable if request.param else gc.disable)()
    yield request.param
    gc.enable()


def test_it_waits_for_a_session(monkeypatch, runs):
    from q7x2_ep import fuse

    states, plain = [], fuse.fuse
    monkeypatch.setattr(fuse, "fuse", lambda *args: states.append(gc.isenabled()) or plain(*args))
    session = q7x2_ep.InferenceSession(RELU)
    assert states == [False] and gc.isenabled() == runs
    assert (session.run(None, {"x": -ONES})[0] == 0).all()


def test_it_goes_on_behind_an_error(runs):
    with pytest.raises(errors.ModelError):
        q7x2_ep.InferenceSession(RELU[:-9])
    assert gc.isenabled() == runs


def test_the_last_of_some_threads_lets_it_go_on(runs):
    left, leave = threading.Event(), threading.Event()

    def first() -> None:
        with collector.waiting():
            leave.wait()
        left.set()

    thread = threading.Thread(target=first)
    thread.start()
    with collector.waiting():
        leave.set()
        left.wait()
        assert not gc.isenabled()
    thread.join()
    assert gc.isenabled() == runs


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_it_goes_on_in_a_child(runs):
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with collector.waiting():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait()
    child = os.fork()
    if child == 0:
        good = gc.isenabled() == runs
        with collector.waiting():
            good &= not gc.isenabled()
        os._exit(0 if good and gc.isenabled() == runs else 1)
    leave.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
