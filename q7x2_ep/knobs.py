"""Every environment variable that q7x2_ep reads. Nothing else reads os.environ."""

from __future__ import annotations

import contextlib
import os
from typing import Callable, NamedTuple, Union

from q7x2_ep.errors import BindingError

Default = Union[str, int]


class Knob(NamedTuple):
    """One variable: Q7X2_<name>; where it is unset, the first of `others` that has such a value."""

    name: str
    type: Callable[[str], Default]
    default: Default
    meaning: str
    others: tuple[str, ...] = ()

    @property
    def variable(self) -> str:
        return f"Q7X2_{self.name}"


KNOBS = {
    knob.name: knob
    for knob in (
        Knob(
            "ISA",
            str,
            "",
            "use no instruction set beyond this one, by the names that doctor prints: avx2, say",
        ),
        Knob(
            "THREADS",
            int,
            0,
            "threads of a session whose options leave it open; 0: the physical cores that affinity "
            "and cgroup quota allow",
            ("ORT_INTRA_OP_NUM_THREADS", "OMP_NUM_THREADS"),
        ),
        Knob(
            "VERIFY",
            int,
            0,
            "1: at load, evaluate what every fusion replaces, before and after, check the graph "
            "after every pass, and hash the weights of compiled files",
        ),
        Knob(
            "CACHE",
            str,
            "",
            "folder of compiled models, for sessions whose options name none; empty: no cache",
        ),
        Knob("LIBRARY", str, "", "path of libq7 to load instead of the one inside the package"),
    )
}


def get(name: str) -> Default:
    """The value of a knob, or its default where the variable is unset or empty.

    Raises: BindingError naming the variable where its value is of the wrong type.
    """
    knob = KNOBS[name]
    text = given(name)
    if text:
        try:
            return knob.type(text)
        except ValueError:
            raise BindingError(
                f"[{knob.variable}] expected {knob.type.__name__}, given {text!r}; correct the "
                "environment variable, or unset it"
            ) from None
    for variable in knob.others:  # whose other values are for others to refuse
        with contextlib.suppress(KeyError, ValueError):
            return knob.type(os.environ[variable])
    return knob.default


def given(name: str) -> str:
    """The text of a knob's own variable; empty where it is unset."""
    return os.environ.get(KNOBS[name].variable, "")


def with_python_path(folder: str) -> dict[str, str]:
    """The environment for another Python that is to look for modules in this folder first."""
    paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
