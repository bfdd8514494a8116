"""Runs with the shapes of the run before take a short way (backend/cpu/lane.py): whatever changes
between two runs, each gives what a first run would.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import q7x2_ep
from q7x2_ep import errors
from q7x2_ep.backend.cpu.lane import COPIED_BYTES
from q7x2_ep.backend.cpu.outputs import KEPT_BYTES
from tests.api.models import FLOAT, info, model, node

SMALL, LARGE = 4, COPIED_BYTES // 4 + 1
OF = {"x": [SMALL], "big": ["n"]}


@pytest.fixture
def session():
    """sum = x + x, a small output, and scaled = big * big, one of any size."""
    nodes = [node("Add", "x x", "sum"), node("Mul", "big big", "square")]
    inputs = [info(name, shape) for name, shape in OF.items()]
    outputs = [info("sum", [SMALL], FLOAT), info("square", ["n"], FLOAT)]
    with q7x2_ep.InferenceSession(model(nodes, inputs, outputs)) as session:
        yield session


def feed(seed: int, n: int = LARGE) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"x": rng.random(SMALL, np.float32), "big": rng.random(n, np.float32)}


def check(outputs: list, fed: dict) -> None:
    np.testing.assert_array_equal(outputs[0], fed["x"] + fed["x"])
    np.testing.assert_array_equal(outputs[1], fed["big"] * fed["big"])


@pytest.mark.parametrize("n", [0, 1, LARGE])
def test_values_change_and_results_stay(session, n):
    fed = [feed(seed, n) for seed in range(5)]
    made = [session.run(None, each) for each in fed]
    for outputs, each in zip(made, fed):
        check(outputs, each)
        assert all(output.flags.owndata and output.flags.writeable for output in outputs)


def test_what_kernels_cannot_read_in_place_goes_the_long_way(session):
    fed = feed(1)
    for _ in range(3):
        session.run(None, fed)
    run_again = session._session.program.run_again
    assert run_again(fed) is not None
    data = fed["big"].tobytes()
    loose = np.frombuffer(b" " + data, np.float32, offset=1)
    strided = np.repeat(fed["big"], 2)[::2]
    for big in (loose, strided):
        assert run_again({**fed, "big": big}) is None
        check(session.run(None, {**fed, "big": big}), fed)


def test_shapes_strides_and_kinds_change(session):
    for n in (LARGE, LARGE, LARGE, 3, 3, 3, LARGE):
        check(session.run(None, feed(n, n)), feed(n, n))
    fed = feed(1)
    fed["big"].flags.writeable = False
    check(session.run([], fed), fed)
    turned = {"x": fed["x"][::-1], "big": fed["big"][::-1]}
    check(session.run(["sum", "square"], turned), turned)
    lists = {"x": fed["x"].tolist(), "big": fed["big"]}
    check(session.run(None, lists), fed)
    check(session.run(None, {**fed, "x": fed["x"].astype(">f4")}), fed)
    square, total = session.run(["square", "sum"], fed)
    check([total, square], fed)


def test_what_does_not_fit_is_refused_as_before(session):
    fed = feed(0)
    for _ in range(3):
        session.run(None, fed)
    wrong = [
        {"x": fed["x"]},
        {**fed, "y": fed["x"]},
        {"x": fed["x"], "y": fed["big"]},
        {**fed, "x": fed["x"].astype(np.float64)},
        {**fed, "x": fed["x"][:3]},
        {**fed, "x": fed["x"][:1]},
        {**fed, "x": fed["x"][None]},
    ]
    for each in wrong:
        with pytest.raises(errors.FeedError):
            session.run(None, each)
    check(session.run(None, fed), fed)
    session._session.close()
    with pytest.raises(errors.BackendError, match="closed"):
        session.run(None, fed)


@pytest.mark.parametrize("n", [5, LARGE])
def test_bound_outputs(session, n):
    """Given arrays are written to, and others are new each time."""
    for given in ((), ("sum",), ("square",), ("sum", "square")):
        binding = session.io_binding()
        arrays = {"sum": np.zeros(SMALL, np.float32), "square": np.zeros(n, np.float32)}
        for name in arrays:
            if name in given:
                value = q7x2_ep.OrtValue.ortvalue_from_numpy(arrays[name])
                binding.bind_ortvalue_output(name, value)
            else:
                binding.bind_output(name)
        for seed in range(4):
            fed = feed(seed, n)
            for name, array in fed.items():
                binding.bind_cpu_input(name, array)
            session.run_with_iobinding(binding)
            check(binding.copy_outputs_to_cpu(), fed)
            for i, name in enumerate(arrays):
                same = np.shares_memory(binding.get_outputs()[i].numpy(), arrays[name])
                assert same == (name in given)
        into = [arrays[name] if name in given else None for name in arrays] if given else ()
        outputs = session._session.program.run_again(fed, into)  # the short way, which is open
        check(outputs, fed)


def test_an_output_over_an_input(session):
    """Each result is of what the inputs held before the run."""
    x, big = feed(0, SMALL).values()
    binding = session.io_binding()
    for name, array in (("x", x), ("big", big)):
        binding.bind_cpu_input(name, array)
    for name, array in (("sum", big), ("square", x)):
        binding.bind_ortvalue_output(name, q7x2_ep.OrtValue.ortvalue_from_numpy(array))
    for _ in range(4):
        before = {"x": x.copy(), "big": big.copy()}
        session.run_with_iobinding(binding)
        check([big, x], before)


@pytest.mark.parametrize("n", [SMALL, LARGE])
def test_an_output_in_the_place_of_an_input(n):
    """It is written in place where nothing reads the input later, and through a copy elsewhere."""
    nodes = [node("Neg", "a", "x"), node("Neg", "b", "y"), node("Add", "x b", "z")]
    ins, outs = ([info(name, ["n"], FLOAT) for name in names] for names in ("abc", "xyzw"))
    with q7x2_ep.InferenceSession(model([*nodes, node("Exp", "c", "w")], ins, outs)) as session:
        (code,) = session._session.program.codes
        assert code.encoded.over[0] == 0 and code.encoded.over[3] == 2
        whole = np.zeros(n + 1, np.float32)
        data = dict(zip("abc", np.random.default_rng(0).random((3, n), np.float32)))
        at = {"a": whole[:-1], "b": data["b"].copy(), "c": np.zeros(n, np.float32)}
        same, near = dict(zip("xyw", at.values())), {**at, "x": whole[1:]}
        for outputs in (same, {"x": near["x"]}, {"x": at["c"], "w": at["a"]}, {"w": at["b"]}):
            for _ in range(4):
                for name, array in at.items():
                    array[...] = data[name]
                binding = session.io_binding()
                for name, array in at.items():
                    binding.bind_cpu_input(name, array)
                for name in "xyzw":
                    if name in outputs:
                        value = q7x2_ep.OrtValue.ortvalue_from_numpy(outputs[name])
                        binding.bind_ortvalue_output(name, value)
                    else:
                        binding.bind_output(name)
                session.run_with_iobinding(binding)
                wanted = [-data["a"], -data["b"], data["b"] - data["a"], np.exp(data["c"])]
                for found, each in zip(binding.get_outputs(), wanted):
                    np.testing.assert_allclose(found.numpy(), each, 1e-6)


def test_many_threads(session):
    def work(seed: int) -> None:
        for n in (2, 2, 2, LARGE, LARGE, LARGE):
            check(session.run(None, feed(seed, n)), feed(seed, n))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(64)))


def test_memory_of_a_large_output_is_taken_again_once_nobody_holds_it(session):
    fed = [feed(seed, KEPT_BYTES // 4) for seed in range(8)]

    def big(i: int) -> np.ndarray:
        return session.run(None, fed[i])[1]

    for i in range(2):  # a run, and one that is like it
        big(i)
    place = big(2).ctypes.data
    assert big(3).ctypes.data == place
    assert session.memory_report().arenas[0] >= KEPT_BYTES
    part = memoryview(big(4)[7:9])  # of which no array is left by name
    other = big(5)
    again = session.run(None, {**fed[6], "big": other})[1]
    for have, wanted in (
        (np.asarray(part), (fed[4]["big"] ** 2)[7:9]),
        (other, fed[5]["big"] ** 2),
        (again, (fed[5]["big"] ** 2) ** 2),
    ):
        np.testing.assert_array_equal(have, wanted)
    del part, other, again
    session.trim()
    assert sum(session.memory_report().arenas) == 0


def test_a_cache_that_grows_goes_to_the_memory_of_the_run_before_last(session):
    rows = KEPT_BYTES // 4
    places, before = [], session.run(None, feed(0, rows))[1]
    for step in range(1, 9):  # what the last run returned is held, as it is fed to the next
        fed = feed(step, rows + step)
        fed["big"][:-1] = before
        outputs = session.run(None, fed)
        check(outputs, fed)
        before = outputs[1]
        places.append(before.ctypes.data)
        del outputs
    assert len(set(places)) == 2
    held = [session.run(None, feed(seed, rows))[1] for seed in range(8)]
    for seed, output in enumerate(held):
        np.testing.assert_array_equal(output, feed(seed, rows)["big"] ** 2)
    for _ in range(8):
        session.run(None, feed(0, 1))
    assert sum(session.memory_report().arenas) < KEPT_BYTES  # nothing is kept for long
