"""The text form of a graph: what `dump` prints and what the golden tests compare.

    graph(%x: f32[S,768])
      %w = f32[768,768] #1a2b3c4d
      %1 = MatMul(%x, %w)
      %2 = Reshape(%1, [S, 12, 64]) {allowzero=0}
      %3 = Mul(%2, 0.125)
      return scores=%3

Small constants are written in place: `0.125` is a float scalar, `2` an int64 scalar, `true` a bool,
`[1, 2]` an int64 vector, anything else is typed, `f16[1,2](1.0, 2.0)`. Shape operands that hold
symbols read the same. A large constant is declared by type and content hash; parse() gives it
contents derived from its name. `_` is an omitted input.
"""

from __future__ import annotations

import re
from typing import Any, Optional

from q7x2_ep import dtypes
from q7x2_ep.ir import shape as shapes
from q7x2_ep.ir.core import Graph, Node, Type, Value, array_type
from q7x2_ep.ir.shape import Dim

MAX_INLINE = 8  # constants of up to this many elements are written in place

_KINDS = {"f": "f", "i": "i", "u": "u", "b": "bool", "s": "str"}
_SHORT = {
    code: (
        "bf16"
        if code == dtypes.BFLOAT16
        else row.onnx
        if row.kind == "c" or code > dtypes.BFLOAT16
        else _KINDS[row.kind] + (str(row.size * 8) if row.kind in "fiu" else "")
    )
    for code, row in dtypes.DTYPES.items()
}
_CODES = {short: code for code, short in _SHORT.items()}
_PLAIN_NAME = re.compile(r"[\w./$-](?:[\w./$:-]*[\w./$-])?$")


def to_text(graph: Graph, types: bool = False, sources: bool = False) -> str:
    """The graph as text. types: annotate every node output. sources: end each node with the model's
    own names."""
    inputs = ", ".join(f"{_name(value)}: {type_text(value.type)}" for value in graph.inputs)
    lines = [f"graph({inputs})"]
    lines += [
        f"  {_name(value)} = {type_text(value.type)} #{content_hash(value.const)}"
        for value in graph.values()
        if value.const is not None and value.const.size > MAX_INLINE
    ]
    for node in graph.nodes:
        line = f"  {node_text(node, types)}"
        lines.append(f"{line}  # {', '.join(node.sources)}" if sources and node.sources else line)
    names = graph.output_names or [value.name for value in graph.outputs]
    outputs = [
        _operand(value) if name == value.name else f"{_quoted(name)}={_operand(value)}"
        for name, value in zip(names, graph.outputs)
    ]
    return "\n".join([*lines, f"  return {', '.join(outputs)}"]) + "\n"


def node_text(node: Node, types: bool = False) -> str:
    """One node as it stands in the text of its graph."""
    outputs = ", ".join(
        f"{_name(value)}: {type_text(value.type)}" if types and value.dtype else _name(value)
        for value in node.outputs
    )
    inputs = ", ".join(map(_operand, node.inputs))
    attrs = ", ".join(
        f"{key}={_attribute(value)}"
        for key, value in sorted(node.attrs.items())
        if value is not None
    )
    return f"{outputs} = {node.op}({inputs})" + (f" {{{attrs}}}" if attrs else "")


def type_text(type: Type) -> str:
    """As in f32[S,768]; without brackets where the rank is unknown."""
    short = _SHORT.get(type.dtype, "any")
    return short if type.shape is None else f"{short}[{','.join(map(_dim, type.shape))}]"


def content_hash(array: Any) -> str:
    """Eight hex digits that depend on dtype, shape and contents, the same on every machine."""
    import hashlib

    data = repr(array.tolist()).encode() if array.dtype.kind == "O" else array.tobytes()
    return hashlib.sha256(f"{array.dtype}{array.shape}".encode() + data).hexdigest()[:8]


def _name(value: Value) -> str:
    return f"%{_quoted(value.name)}"


def _quoted(name: str) -> str:
    return name if _PLAIN_NAME.match(name) else _string(name)


def _string(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _operand(value: Optional[Value]) -> str:
    if value is None:
        return "_"
    if value.const is not None and value.const.size <= MAX_INLINE:
        return _literal(value.dtype, value.shape, value.const.reshape(-1).tolist())
    if value.const is None and value.producer is None and value.elements is not None:
        return _literal(value.dtype, value.shape, list(value.elements))
    return _name(value)


def _literal(dtype: int, shape: tuple[Dim, ...], elements: list) -> str:
    if dtype == dtypes.BOOL:
        elements = [bool(element) for element in elements]
    texts = [_scalar(element, dtype) for element in elements]
    ndim = {dtypes.FLOAT: 0, dtypes.INT64: 1, dtypes.BOOL: 1}.get(dtype, -1)
    if len(shape) == 0 and ndim >= 0:
        return texts[0]
    if len(shape) == 1 and ndim == 1 and texts:
        return f"[{', '.join(texts)}]"
    return f"{type_text(Type(dtype, shape))}({', '.join(texts)})"


def _scalar(element: Any, dtype: int) -> str:
    if isinstance(element, bool):
        return "true" if element else "false"
    if isinstance(element, (str, bytes)):
        return _string(element if isinstance(element, str) else element.decode("utf-8", "replace"))
    if dtype == dtypes.FLOAT and isinstance(element, float):
        return str(dtypes.make_array([element], dtype, ())[()])  # the shortest that reads back
    return _dim(element)


def _dim(dim: Dim) -> str:
    """As shape.py prints it, with names that are no plain words in quotes."""
    odd = [name for name in shapes.symbols(dim) if not name.isidentifier()]
    quoted = {name: shapes.symbol(f"'{name}'") for name in odd}
    return str(shapes.substitute(dim, quoted) if odd else dim)


def _attribute(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_attribute, value))}]"
    if isinstance(value, (bool, int, float, str, bytes)):
        return _scalar(value, 0)
    if isinstance(value, Graph):
        return _string(to_text(value))
    if not hasattr(value, "reshape"):
        return _string(str(value))
    type = array_type(value)
    elements = [_scalar(element, type.dtype) for element in value.reshape(-1).tolist()]
    return f"{type_text(type)}({', '.join(elements)})"


_TOKEN = re.compile(
    r"""\s*(?:
      (?P<comment>\#(?:\s.*)?$)
    | (?P<hash>\#[0-9a-f]{8})
    | %(?P<value>[\w./$-](?:[\w./$:-]*[\w./$-])?)
    | %"(?P<quoted>(?:\\.|[^"\\])*)"
    | "(?P<string>(?:\\.|[^"\\])*)"
    | '(?P<symbol>[^']*)'
    | (?P<float>\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|(?:inf|nan)\b)
    | (?P<int>\d+\b)
    | (?P<word>[A-Za-z_/][\w./$-]*(?:::[\w.]+)?)
    | (?P<sign>[-+*()\[\]{},=:])
    | (?P<bad>\S)
    )""",
    re.VERBOSE,
)


def parse(text: str) -> Graph:
    """The graph that a text describes. Attributes that the text leaves out stay out: infer.run
    fills in defaults.

    Raises: ValueError with the line that cannot be read.
    """
    return _Parser(text).graph


class _Parser:
    """Recursive descent over the tokens of one line at a time."""

    def __init__(self, text: str):
        self.graph = Graph()
        self.known: dict[str, Value] = {}
        for self.line in text.splitlines():
            matches = (match for match in _TOKEN.finditer(self.line) if match.lastgroup)
            self.tokens = [
                (m.lastgroup, m[m.lastgroup]) for m in matches if m.lastgroup != "comment"
            ]
            self.tokens.append(("end", ""))
            self.at = 0
            if len(self.tokens) > 1:
                self.read_line()
                if self.kind != "end":
                    raise self.error(f"unexpected {self.word!r}")

    @property
    def kind(self) -> str:
        return self.tokens[self.at][0]

    @property
    def word(self) -> str:
        return self.tokens[self.at][1]

    def error(self, reason: str) -> ValueError:
        return ValueError(f"{reason} in: {self.line.strip()}")

    def read_line(self) -> None:
        if self.accept("graph"):
            self.graph.inputs = [self.typed_name() for _ in self.items("(", ")")]
        elif self.accept("return"):
            self.read_return()
        else:
            self.read_definition()

    def read_return(self) -> None:
        while self.kind != "end":
            name = None
            if self.tokens[self.at + 1] == ("sign", "="):
                name = self.next()[1]
                self.expect("=")
            value = self.operand()
            self.graph.outputs.append(value)
            self.graph.output_names.append(value.name if name is None else name)
            self.accept(",")

    def read_definition(self) -> None:
        outputs = [self.typed_name()]
        while self.accept(","):
            outputs.append(self.typed_name())
        self.expect("=")
        if self.word in _CODES:
            self.stand_in(outputs[0])
            return
        _, word = self.next()
        inputs = [self.operand() for _ in self.items("(", ")")]
        attrs = {}
        if self.peek("{"):
            for _ in self.items("{", "}"):
                key = self.next()[1]
                self.expect("=")
                attrs[key] = self.attribute()
        name = f"{word}.{outputs[0].name}"
        self.graph.nodes.append(Node(word, inputs, outputs, attrs, name, (name,)))

    def stand_in(self, value: Value) -> None:
        """A declared large constant: elements in [-2, 2) made from a hash of its name."""
        dtype, shape = self.type()
        if self.kind == "hash":
            self.next()
        count: Any = shapes.product(shape)
        import hashlib

        data = hashlib.shake_128(value.name.encode()).digest(count)
        value.const = (dtypes.make_array(data, dtypes.INT8, shape) / 64).astype(
            dtypes.DTYPES[dtype].numpy
        )
        value.set_type(array_type(value.const))

    def next(self) -> tuple[str, str]:
        if self.kind == "end":
            raise self.error("something is missing at the end")
        self.at += 1
        return self.tokens[self.at - 1]

    def peek(self, sign: str) -> bool:
        return self.kind in ("sign", "word") and self.word == sign

    def accept(self, sign: str) -> bool:
        found = self.peek(sign)
        self.at += found
        return found

    def expect(self, sign: str) -> None:
        if not self.accept(sign):
            raise self.error(f"expected {sign!r} at token {self.at + 1}")

    def items(self, first: str, last: str):
        """Yields once per item of a bracketed list; the caller reads the item."""
        self.expect(first)
        while not self.accept(last):
            yield
            if not self.peek(last):
                self.expect(",")

    def typed_name(self) -> Value:
        kind, name = self.next()
        if kind not in ("value", "quoted"):
            raise self.error(f"expected a %name, found {name!r}")
        value = self.known[name] = Value(_unescape(name))
        if self.accept(":"):
            value.dtype, value.shape = self.type()
        return value

    def type(self) -> tuple[int, Optional[tuple[Dim, ...]]]:
        word = self.next()[1]
        if word not in _CODES and word != "any":
            raise self.error(f"unknown dtype {word!r}")
        shape = tuple([self.dim() for _ in self.items("[", "]")]) if self.peek("[") else None
        return _CODES.get(word, 0), shape

    def operand(self) -> Optional[Value]:
        if self.kind in ("value", "quoted"):
            _, word = self.next()
            if word not in self.known:
                raise self.error(f"%{word} is not defined")
            return self.known[word]
        if self.accept("_"):
            return None
        return self.constant()

    def constant(self) -> Value:
        """A literal: an array, or a value with only elements where they hold symbols."""
        if self.word in _CODES and self.tokens[self.at + 1] == ("sign", "["):
            dtype, shape = self.type()
            elements = [self.scalar() for _ in self.items("(", ")")]
        else:
            listed = self.peek("[")
            elements = [self.scalar() for _ in self.items("[", "]")] if listed else [self.scalar()]
            shape = (len(elements),) if listed else ()
            first = elements[0] if elements else 0
            dtype = {float: dtypes.FLOAT, bool: dtypes.BOOL, str: dtypes.STRING}.get(
                first.__class__, dtypes.INT64
            )
        if any(isinstance(element, shapes.Expr) for element in elements):
            return self.graph.new_value(Type(dtype, shape, tuple(elements)), "shape")
        array = dtypes.make_array(elements, dtype, shape)
        return self.graph.constant(array, array_type(array))

    def attribute(self) -> Any:
        if self.peek("["):
            return tuple([self.attribute() for _ in self.items("[", "]")])
        if self.word in _CODES:
            return self.constant().const
        return self.scalar()

    def scalar(self) -> Any:
        """A bool, string, float or dim."""
        negative = self.peek("-")
        kind, word = self.tokens[self.at + negative]
        if kind in ("float", "string"):
            self.at += 1 + negative
            return (
                _unescape(word) if kind == "string" else -float(word) if negative else float(word)
            )
        if kind == "word" and word in ("true", "false"):
            self.at += 1
            return word == "true"
        return self.dim()

    def dim(self) -> Dim:
        total: Dim = -self.term() if self.accept("-") else self.term()
        while self.peek("+") or self.peek("-"):
            sign = self.next()[1]
            total = total + self.term() if sign == "+" else total - self.term()
        return total

    def term(self) -> Dim:
        total = self.atom()
        while self.accept("*"):
            total = total * self.atom()
        return total

    def atom(self) -> Dim:
        kind, word = self.next()
        if kind == "int":
            return int(word)
        if kind == "word" and self.peek("("):
            operands = [self.dim() for _ in self.items("(", ")")]
            return shapes.OPERATIONS[word](*operands)
        if kind in ("word", "symbol"):
            return shapes.symbol(word)
        raise self.error(f"unexpected {word!r}")


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], text)
