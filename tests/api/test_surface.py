"""Every public name of onnxruntime, with its parameters, fields and defaults, is here too.

tests/golden/onnxruntime.txt says what onnxruntime has, one fact a line; where it is installed, the
file is held against it, and --accept rewrites it.
"""

from __future__ import annotations

import enum
import inspect
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import q7x2_ep
from q7x2_ep import errors

GOLDEN = Path(__file__).parents[1] / "golden" / "onnxruntime.txt"
FACTS = [line.split(" ", 2) for line in GOLDEN.read_text().splitlines()]
OURS = {
    "capi": "submodules are those of onnxruntime's package",
    "onnxruntime_validation": "a submodule",
    "contextlib": "an import of theirs",
    "import_capi_exception": "a left-over of theirs",
    **dict.fromkeys(
        (
            "ModelPackage",
            "ModelPackageComponentContext",
            "ModelPackageContext",
            "ModelPackageOptions",
            "ModelPackageWriteMode",
        ),
        "variants of a model for execution providers: not followed, see docs/roadmap.md, 5",
    ),
}


def public(names: Any) -> list[str]:
    return sorted(name for name in names if not name.startswith("_"))


def facts(module: Any) -> Iterator[str]:
    """Of onnxruntime's module: `kind name details`."""
    for name in public(dir(module)):
        value = getattr(module, name)
        if isinstance(value, ModuleType) or name in OURS:
            continue
        members = getattr(value, "__members__", None)
        if members:
            numbers = " ".join(f"{key}={int(each)}" for key, each in members.items())
            yield f"enum {name} {numbers}"
        elif inspect.isclass(value):
            yield f"class {name} {parameters(value)}"
            for member in public(dir(value)):
                yield f"member {name}.{member} {parameters(getattr(value, member))}"
        else:
            yield f"{'function' if callable(value) else 'value'} {name} {parameters(value)}"
    for owner in ("SessionOptions", "RunOptions"):
        made = getattr(module, owner)()
        for member in public(dir(made)):
            if not callable(getattr(made, member)):
                default = getattr(made, member)
                yield f"default {owner}.{member} {getattr(default, 'name', repr(default))}"
    for name, value in sorted(exceptions().items()):
        yield f"exception {name} {value.__base__.__name__}"


def exceptions() -> dict[str, type]:
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    return {
        name: value
        for name, value in vars(state).items()
        if inspect.isclass(value) and issubclass(value, Exception)
    }


def parameters(value: Any) -> str:
    """The names of parameters, optional ones with `=`; nothing where Python cannot tell."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    named = [
        f"{each.name}{'' if each.default is each.empty else '='}"
        for each in signature.parameters.values()
        if each.name not in ("self", "cls") and each.kind not in (each.VAR_KEYWORD,)
    ]
    return "" if any(re.match(r"args?\d*$", name) for name in named) else " ".join(named)


def test_a_callback_for_what_is_logged(monkeypatch):
    said, lost = [], []
    monkeypatch.setattr("sys.unraisablehook", lost.append)
    logger = logging.getLogger("q7x2_ep")
    q7x2_ep.set_default_logger_callback(lambda *given: said.append(given))
    try:
        logger.warning("a %s", "word")
        logger.info("too quiet")
        q7x2_ep.set_default_logger_callback(lambda *given: 1 / 0, 1)
        logger.info("failing")
    finally:
        q7x2_ep.set_default_logger_callback(None)
        q7x2_ep.set_default_logger_severity(2)
    logger.warning("to nobody")
    assert [(each[0], each[1], each[4]) for each in said] == [(2, "q7x2_ep", "a word")]
    assert [each.exc_type for each in lost] == [ZeroDivisionError]
    with pytest.raises(errors.BindingError, match="must be a callable"):
        q7x2_ep.set_default_logger_callback(3)


def test_where_no_binaries_are_written():
    compiler = q7x2_ep.ModelCompiler(q7x2_ep.SessionOptions(), b"any")
    compiler.set_ep_context_binary_information("folder/", "name")
    with pytest.raises(errors.InvalidArgument, match="is empty"):
        compiler.set_ep_context_binary_information("folder/", "")


def test_golden(golden, monkeypatch):
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "1")
    onnxruntime = pytest.importorskip("onnxruntime", minversion="1.32")
    golden(GOLDEN.name, "".join(f"{fact.rstrip()}\n" for fact in facts(onnxruntime)))


@pytest.mark.parametrize("fact", FACTS, ids=" ".join)
def test_fact(fact: list[str]) -> None:
    kind, name, details = [*fact, ""][:3]
    if kind == "exception":
        assert getattr(errors, name).__base__.__name__ == details
        return
    owner, _, member = name.partition(".")
    value = getattr(q7x2_ep, owner)
    assert owner in q7x2_ep.__all__
    if kind == "enum":
        assert issubclass(value, enum.IntEnum)
        found = {key: int(each) for key, each in value.__members__.items()}
        assert " ".join(f"{key}={number}" for key, number in found.items()) == details
    elif kind == "default":
        default = getattr(value(), member)
        assert getattr(default, "name", repr(default)) == details
    elif kind == "member":
        if not has_member(value, member):
            raise AssertionError(f"{owner} has no {member}")
        ours = inspect.getattr_static(value, member, None)
        assert_takes(getattr(value, member, ours), details)
    else:
        assert callable(value) == (kind != "value")
        assert_takes(value, details)


def has_member(owner: type, name: str) -> bool:
    """A method, a property, a field, or what instances get when they are made."""
    made = re.findall(r"self\.(\w+)\b", inspect.getsource(owner))
    return hasattr(owner, name) or name in getattr(owner, "__annotations__", {}) or name in made


def assert_takes(value: Any, wanted: str) -> None:
    """Every parameter of theirs is there, in its place, and optional where theirs is."""
    if not wanted:
        return
    ours = [
        p for p in inspect.signature(value).parameters.values() if p.name not in ("self", "cls")
    ]
    for parameter, name in zip(ours, wanted.split()):
        assert parameter.name == name.rstrip("=")
        assert not name.endswith("=") or parameter.default is not parameter.empty
    assert len(ours) >= len(wanted.split())
