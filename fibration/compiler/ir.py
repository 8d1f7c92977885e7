"""The IR on one page: a graph of vectors over strata, with scalar bodies in its maps.

A `Node` is one vector with a number for every element of a stratum. There are nine kinds:

    Input(name)            a vector that the caller gives: log ratios, advantages, counts, parameters, cotangents
    Const(value)           the same number everywhere
    Push(a -> b, x)        combine over fibres: for each element of `b`, the sum (or max) of x over its elements of `a`
    Pull(a -> b, x)        broadcast: every element of `a` gets the value of the element of `b` that it lies over
    Map(body, x...)        a scalar expression, elementwise, over vectors on one stratum
    Mix(a <- b, x)         a dense linear map between coarse strata, or its transpose; an index computes its matrix
                           `[a, b]`
    Quantile(a... -> b, x...)  for each element of `b`, the value at position `level·(n - 1)` of its tokens' `n` sorted
                           values, interpolated linearly; no derivative
    Scan(a... -> b, x...)  at each element, the discounted sum of x over all elements before it, or after it, that lie
                           over the same element of `b`
    Detach(x)              x, without a derivative

A weighted mean is a Map and a Push, a reflecting kernel a Pull and a Map. Push and Pull are each other's adjoints. The
adjoint of a Scan is the Scan in the other direction.
Tokens are the elements of the leaves. With several leaves, a vector per token has one part per leaf.
A `Scalar` is a tree over `arg` and `const` with the operators of `SCALAR_ARITY`; every backend has one row for each.
Nodes and scalars are interned: equal means identical, so common subexpressions are shared by construction.

`Program.validate` (`program.py`) checks these invariants after every stage:
- an operand has the stratum that its node names, and a Map's operands share its stratum;
- arguments of a body are bound, and conditions stand only where conditions belong;
- names are identifiers.
Inputs are identified by their fields and outputs by their `Key`. Names become unique when they are printed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cache
from typing import Any, ClassVar, NamedTuple
from weakref import WeakValueDictionary

from fibration.language.atoms import BATCH as BATCH  # the stratum of one element, over which everything lies
from fibration.language.gates import CHANNEL_WORD
from fibration.language.operators import PRIMITIVES


class Key(NamedTuple):  # a tuple has the fastest hash, and every metric of every call hashes its key
    """Identifies a vector: what it is (`word`), of which level or leaf, and `over` which stratum it is added up.

    The text of a key is the vector's name, unless another vector has that name.
    """

    word: str
    stratum: str = ""
    channel: str = ""
    over: str = ""

    def __str__(self) -> str:
        level = f"_{self.stratum}{CHANNEL_WORD[self.channel]}" if self.stratum else ""
        return self.word + level + (f"_over_{self.over}" if self.over else "")


def without_macros(word: str) -> str:
    """Returns a word that is no macro of C or constant of Triton: they have no small letter, or begin as `DTYPE_`."""
    first = word.partition("_")[0]
    return word.lower() if word.isupper() or (first.isupper() and len(first) > 1) else word


class Names:
    """Gives out identifiers, each only once."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self.taken = set(taken)

    def free(self, wish: str, *endings: str) -> str:
        """`wish`, or `wish_2`, `wish_3`, ...: the first word that is not taken with any of `endings`."""
        found, number = wish, 1
        while any(found + ending in self.taken for ending in endings or ("",)):
            number += 1
            found = f"{wish}_{number}"
        self.taken.update(found + ending for ending in endings or ("",))
        return found


# Scalar operators: number of arguments. `select` takes a condition and two numbers.
SCALAR_ARITY: Mapping[str, int] = {"arg": 0, "const": 0, **{op: row.arity for op, row in PRIMITIVES.items()}}
CONDITIONS = frozenset(op for op, row in PRIMITIVES.items() if row.is_condition)


@cache
def _defaults(cls: Any) -> dict[str, Any]:
    """The fields of a dataclass, with their defaults."""
    return {f.name: f.default for f in fields(cls)}


class _Interned(type):
    """Makes two calls with equal arguments return the same object. Floats compare by their digits: 0.0 differs from
    -0.0, and NaN equals NaN.
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        given: Any = args
        if kwargs or len(args) < len(_defaults(cls)):
            given = {**_defaults(cls), **dict(zip(_defaults(cls), args, strict=False)), **kwargs}.values()
        key = tuple([(type(v), v.hex() if isinstance(v, float) else v) for v in given])
        found = cls.table.get(key)  # type: ignore[attr-defined]
        if found is None:
            found = super().__call__(*args, **kwargs)
            cls.table[key] = found  # type: ignore[attr-defined]
        return found

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> None:
        super().__init__(name, bases, namespace)
        cls.table: WeakValueDictionary[Any, Any] = WeakValueDictionary()


@dataclass(frozen=True, eq=False)
class Scalar(metaclass=_Interned):
    """One operator of a map's body. `value` is the number of a `const`, or the position of an `arg`."""

    op: str
    args: tuple[Scalar, ...] = ()
    value: Fraction | float | int | None = None

    def __str__(self) -> str:
        if self.op == "arg":
            return f"${self.value}"
        if self.op == "const":
            return repr(float(self.value))  # type: ignore[arg-type]
        return f"{self.op}({', '.join(map(str, self.args))})"


def arg(position: int) -> Scalar:
    return Scalar("arg", (), position)


def const(value: Fraction | float) -> Scalar:
    """A constant as it is written. Float64 has it rounded (`rules.simplify`), and infinities, NaN and -0.0."""
    is_of_floats = isinstance(value, float) and (not math.isfinite(value) or (value == 0 > math.copysign(1, value)))
    return Scalar("const", (), value if is_of_floats else Fraction(value))


def scalar(op: str, *args: Scalar) -> Scalar:
    return Scalar(op, args)


def with_arguments(body: Scalar, table: list[Scalar]) -> Scalar:
    """`body` with its arguments replaced by the entries of `table`."""
    if body.op == "arg":
        return table[int(body.value or 0)]
    if not body.args:
        return body
    return Scalar(body.op, tuple(with_arguments(a, table) for a in body.args), body.value)


def replaced(body: Scalar, old: Scalar, new: Scalar) -> Scalar:
    """`body` with one of its parts replaced, wherever it stands."""
    done = {old: new}  # bodies share parts

    def of(part: Scalar) -> Scalar:
        if part not in done:
            done[part] = Scalar(part.op, tuple(map(of, part.args)), part.value) if part.args else part
        return done[part]

    return of(body)


def parts(body: Scalar) -> set[Scalar]:
    """A body and all that it is made of."""
    return {body}.union(*map(parts, body.args))


def arguments(body: Scalar) -> dict[int, None]:
    """The positions of the arguments that `body` reads, each once, in the order of first appearance."""
    if body.op == "arg":
        return {int(body.value or 0): None}
    return dict.fromkeys(i for a in body.args for i in arguments(a))


@dataclass(frozen=True, eq=False)
class Node(metaclass=_Interned):
    """A vector over `stratum`, which is the value of the field `AT`."""

    operands: ClassVar[tuple[Node, ...]] = ()
    AT: ClassVar[str]

    @property
    def stratum(self) -> str:
        return getattr(self, self.AT)  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class Input(Node):
    """A vector that the caller gives. `kind` and `key` identify it: `"count"` and `("token", "trajectory")`.

    `word` is its name; `Program.given` adds a number if the name is taken.
    """

    word: str
    over: str
    kind: str
    key: tuple[str, ...] = ()

    AT = "over"


def part(word: str, leaf: str, leaves: tuple[str, ...]) -> Key:
    """The key of one leaf's part of a vector per token. With a single leaf the part is the whole vector."""
    return Key(word, leaf if len(leaves) > 1 else "")


def token_input(kind: str, leaf: str, leaves: tuple[str, ...], key: tuple[str, ...] = ()) -> Input:
    """An input over the tokens of a leaf. A policy's has `kind` "policy_log_prob" and `key` `(name,)`."""
    word = f"{key[0]}_log_prob" if key else kind
    return Input(str(part(word, leaf, leaves)), leaf, kind, key)


def count_input(of: str, over: str) -> Input:
    """The number of `of` elements that lie over each `over` element."""
    return Input(f"count_{of}_over_{over}", over, "count", (of, over))


@dataclass(frozen=True, eq=False)
class Const(Node):
    value: float  # a Fraction until `optimise` rounds it
    over: str

    AT = "over"


class _Single(Node):
    """A node of one operand."""

    operand: Node

    @property
    def operands(self) -> tuple[Node, ...]:  # type: ignore[override]
        return (self.operand,)


@dataclass(frozen=True, eq=False)
class Push(_Single):
    source: str
    target: str
    operand: Node
    reduce: str = "sum"
    wide: bool = False  # a sum over tokens in float64 from the inputs on, whatever reads it

    AT = "target"


@dataclass(frozen=True, eq=False)
class Pull(_Single):
    source: str
    target: str
    operand: Node

    AT = "source"


@dataclass(frozen=True, eq=False)
class Map(Node):
    body: Scalar
    inputs: tuple[Node, ...]

    @property
    def operands(self) -> tuple[Node, ...]:  # type: ignore[override]
        return self.inputs

    @property
    def stratum(self) -> str:
        return self.inputs[0].stratum


def map_over(body: Scalar, operands: Sequence[Node], read: Sequence[int]) -> Node:
    """A map of the operands at the positions `read`, which are all that `body` reads; the operand if the map is it."""
    place = {i: arg(k) for k, i in enumerate(read)}
    body = with_arguments(body, [place.get(i, arg(0)) for i in range(len(operands))])
    chosen = tuple(operands[i] for i in read)
    return chosen[0] if body is arg(0) else Map(body, chosen)


@dataclass(frozen=True)
class Matrix:
    """The block `[into, of]` of an index's projection."""

    into: str
    of: str

    @property
    def word(self) -> str:
        return f"matrix_{self.into}_of_{self.of}"


@dataclass(frozen=True, eq=False)
class Mix(_Single):
    """`y = B x`, or `y = Bᵀ x` if `transposed`."""

    into: str
    of: str
    operand: Node
    transposed: bool = False

    @property
    def stratum(self) -> str:
        return self.of if self.transposed else self.into

    @property
    def source(self) -> str:
        return self.into if self.transposed else self.of

    @property
    def matrix(self) -> Matrix:
        return Matrix(self.into, self.of)


@dataclass(frozen=True, eq=False)
class Quantile(Node):
    """`values` has one vector for each leaf whose tokens count. `level`, from 0 to 1, is over the target.

    Interpolates between the two values next to position `level·(n - 1)`, as `numpy.quantile` does. The result is 0 for
    an element without tokens, and NaN if one of the values is NaN.
    """

    target: str
    values: tuple[Node, ...]
    level: Node

    @property
    def operands(self) -> tuple[Node, ...]:  # type: ignore[override]
        return (*self.values, self.level)

    AT = "target"

    @property
    def sources(self) -> tuple[str, ...]:
        """The leaves, in the order of the values."""
        return tuple(v.stratum for v in self.values)


@dataclass(frozen=True, eq=False)
class Scan(Node):
    """`Σ discount^|t-s|·values_s` at each `t` of `into`, over all `s` before `t` (or after it) in one target element.

    `values` has one vector for each stratum of the common order, `into` included: all leaves whose tokens lie over the
    target, or one coarser stratum. `discount` is over the batch.
    """

    into: str
    target: str
    values: tuple[Node, ...]
    discount: Node
    forward: bool = True

    @property
    def operands(self) -> tuple[Node, ...]:  # type: ignore[override]
        return (*self.values, self.discount)

    AT = "into"

    @property
    def sources(self) -> tuple[str, ...]:
        """The strata whose elements are in one order."""
        return tuple(v.stratum for v in self.values)

    @property
    def order(self) -> tuple[str, ...]:
        """The strata of the order: the target, then the sources."""
        return (self.target, *self.sources)


@dataclass(frozen=True, eq=False)
class Detach(_Single):
    operand: Node

    @property
    def stratum(self) -> str:
        return self.operand.stratum


def with_operands(node: Node, new: Mapping[Node, Node]) -> Node:
    """`node` with each operand `o` replaced by `new[o]`."""
    if isinstance(node, Map):
        return Map(node.body, tuple(new[o] for o in node.inputs))
    if isinstance(node, Quantile):
        return Quantile(node.target, tuple(new[o] for o in node.values), new[node.level])
    if isinstance(node, Scan):
        return replace(node, values=tuple(new[o] for o in node.values), discount=new[node.discount])
    return replace(node, operand=new[node.operand]) if isinstance(node, _Single) else node  # type: ignore[call-arg]


def depending(order: Iterable[Node], found: set[Node]) -> set[Node]:
    """`found`, and every node that depends on one of it. `order` has operands before their users."""
    for node in order:
        if not found.isdisjoint(node.operands):
            found.add(node)
    return found


def needed(order: Sequence[Node], found: set[Node], read: Callable[[Node], Iterable[Node]]) -> set[Node]:
    """`found`, and every node that one of it needs: those that `read` returns of a node, and so on."""
    for node in reversed(order):
        if node in found:
            found.update(read(node))
    return found


def broadcast(node: Node, path: Sequence[str]) -> Node:
    """A vector over the last stratum of a path, at the elements of the first."""
    for source, target in reversed(list(itertools.pairwise(path))):
        node = Pull(source, target, node)
    return node


def reduce(node: Node, path: Sequence[str], how: str = "sum") -> Node:
    """The sums (or `max`) of a vector over the first stratum of a path, over the elements of the last."""
    for source, target in itertools.pairwise(path):
        node = Push(source, target, node, how)
    return node


def binary(op: str, a: Node, b: Node) -> Map:
    operands = (a, b) if a is not b else (a,)
    return Map(scalar(op, arg(0), arg(len(operands) - 1)), operands)


def total(nodes: list[Node]) -> Node:
    """The sum of several vectors over one stratum."""
    unique = list(dict.fromkeys(nodes))
    weights = [nodes.count(n) for n in unique]
    terms = [arg(i) if w == 1 else scalar("mul", const(w), arg(i)) for i, w in enumerate(weights)]
    body = terms[0]
    for term in terms[1:]:
        body = scalar("add", body, term)
    return unique[0] if body == arg(0) else Map(body, tuple(unique))
