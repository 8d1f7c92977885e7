"""The IR on one page: a graph of vectors over strata, with scalar bodies in its maps.

A `Node` is one vector with a number for every element of a stratum. There are eight kinds:

    Input(name)            a vector given by the caller: log ratios, advantages, counts, parameters, cotangents
    Const(value)           the same number everywhere
    Push(a -> b, x)        combine over fibres: sum (or max) of x over the elements of `a` that lie over each of `b`
    Pull(a -> b, x)        broadcast: every element of `a` gets the value of the element of `b` that it lies over
    Map(body, x...)        a scalar expression, elementwise, over vectors on one stratum
    Mix(a <- b, x)         a dense linear map between coarse strata, whose matrix `[a, b]` an index computes; or its
                           transpose
    Quantile(a... -> b, x...)  of all tokens over each element of `b`: the number at `level·(n - 1)` among their `n`
                           values in order, linearly between two neighbours; without a derivative
    Detach(x)              x, without a derivative

A weighted mean is a Map and a Push, a reflecting kernel a Pull and a Map. Push and Pull are each other's adjoints.
Tokens are the elements of the leaves; with several of these, what exists per token exists per leaf.
A `Scalar` is a tree over `arg` and `const` with the operators of `SCALAR_ARITY`; every backend has one row for each.
Nodes and scalars are interned: equal means identical, so common subexpressions are shared by construction.

Invariants, checked by `Program.validate` after every stage: edges join the strata they say, a Map's operands share its
stratum, arguments of a body are bound, conditions stand only where conditions belong, names are identifiers. Inputs are
known by what they are and outputs by their `Key`; that nothing else has their name is seen to where they are printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from fibration.compiler.keys import Key, Names
from fibration.errors import IRError
from fibration.language.atoms import BATCH as BATCH  # the stratum of one element, over which everything lies
from fibration.language.operators import PRIMITIVES

# Scalar operators: number of arguments. `select` takes a condition and two numbers.
SCALAR_ARITY: Mapping[str, int] = {"arg": 0, "const": 0, **{op: row.arity for op, row in PRIMITIVES.items()}}
CONDITIONS = frozenset(op for op, row in PRIMITIVES.items() if row.is_condition)
PER_TOKEN = ("gated_ratio", "coefficients", "log_ratio_gradient")  # words of results that all leaves fill together


@cache
def _defaults(cls: Any) -> dict[str, Any]:
    """The fields of a dataclass, with their defaults."""
    return {f.name: f.default for f in fields(cls)}


class _Interned(type):
    """Calling the class twice with equal arguments gives the same object. Floats are equal by their digits: 0.0 is not
    -0.0, and NaN is NaN.
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
    """One operator of a map's body; `value` is the constant, or the number of the argument."""

    op: str
    args: tuple[Scalar, ...] = ()
    value: float | int | None = None

    def __str__(self) -> str:
        if self.op == "arg":
            return f"${self.value}"
        return repr(self.value) if self.op == "const" else f"{self.op}({', '.join(map(str, self.args))})"


def arg(position: int) -> Scalar:
    return Scalar("arg", (), position)


def const(value: float) -> Scalar:
    return Scalar("const", (), float(value))


def scalar(op: str, *args: Scalar) -> Scalar:
    return Scalar(op, args)


def with_arguments(body: Scalar, table: list[Scalar]) -> Scalar:
    """`body` with its arguments replaced by the entries of `table`."""
    if body.op == "arg":
        return table[int(body.value or 0)]
    if not body.args:
        return body
    return Scalar(body.op, tuple(with_arguments(a, table) for a in body.args), body.value)


@dataclass(frozen=True, eq=False)
class Node(metaclass=_Interned):
    """A vector over `stratum`."""

    operands: ClassVar[tuple[Node, ...]] = ()

    @property
    def stratum(self) -> str:
        raise IRError(f"{type(self).__name__} has no stratum")


@dataclass(frozen=True, eq=False)
class Input(Node):
    """`kind` says where the caller gets it, `key` which one: `("count", ("token", "trajectory"))`.

    `word` is what it is called as long as nothing else is called so.
    """

    word: str
    over: str
    kind: str
    key: tuple[str, ...] = ()

    @property
    def stratum(self) -> str:
        return self.over


def part(word: str, leaf: str, leaves: tuple[str, ...]) -> Key:
    """The key of a leaf's part of what exists per token; a single leaf's part is the whole."""
    return Key(word, leaf if len(leaves) > 1 else "")


def token_input(kind: str, leaf: str, leaves: tuple[str, ...], key: tuple[str, ...] = ()) -> Input:
    """An input over the tokens of a leaf; of a policy by its name, `kind` "policy_log_prob" and `key` `(name,)`."""
    word = f"{key[0]}_log_prob" if key else kind
    return Input(str(part(word, leaf, leaves)), leaf, kind, key)


def count_input(of: str, over: str) -> Input:
    """How many `of` elements lie over each `over` element."""
    return Input(f"count_{of}_over_{over}", over, "count", (of, over))


@dataclass(frozen=True, eq=False)
class Const(Node):
    value: float
    over: str

    @property
    def stratum(self) -> str:
        return self.over


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
    wide: bool = False  # of tokens: in float64 from the inputs on, whatever reads it

    @property
    def stratum(self) -> str:
        return self.target


@dataclass(frozen=True, eq=False)
class Pull(_Single):
    source: str
    target: str
    operand: Node

    @property
    def stratum(self) -> str:
        return self.source


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
    """`y = B x`, or `y = Bᵀ x`."""

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
    """`values` are over leaves, a vector for each whose tokens count; `level`, from 0 to 1, is over the target.

    Between the two values next to `level·(n - 1)`, as numpy.quantile does; 0 where nothing lies over an element, NaN
    where one of the values is.
    """

    target: str
    values: tuple[Node, ...]
    level: Node

    @property
    def operands(self) -> tuple[Node, ...]:  # type: ignore[override]
        return (*self.values, self.level)

    @property
    def stratum(self) -> str:
        return self.target

    @property
    def sources(self) -> tuple[str, ...]:
        """The leaves, in the order of the values."""
        return tuple(v.stratum for v in self.values)


@dataclass(frozen=True, eq=False)
class Detach(_Single):
    operand: Node

    @property
    def stratum(self) -> str:
        return self.operand.stratum


def with_operands(node: Node, new: Mapping[Node, Node]) -> Node:
    """`node`, of other operands."""
    if isinstance(node, Map):
        return Map(node.body, tuple(new[o] for o in node.inputs))
    if isinstance(node, Quantile):
        return Quantile(node.target, tuple(new[o] for o in node.values), new[node.level])
    return replace(node, operand=new[node.operand]) if isinstance(node, _Single) else node  # type: ignore[call-arg]


def total(nodes: list[Node]) -> Node:
    """The sum of several vectors over one stratum."""
    unique = list(dict.fromkeys(nodes))
    weights = [nodes.count(n) for n in unique]
    terms = [arg(i) if w == 1 else scalar("mul", const(w), arg(i)) for i, w in enumerate(weights)]
    body = terms[0]
    for term in terms[1:]:
        body = scalar("add", body, term)
    return unique[0] if body == arg(0) else Map(body, tuple(unique))


@dataclass(frozen=True)
class Program:
    """Outputs over inputs. `names` are for reading: the user's words for some of the nodes."""

    name: str
    leaves: tuple[str, ...]
    outputs: Mapping[Key, Node]
    names: Mapping[Node, Key]

    def part(self, word: str, leaf: str) -> Key:
        """The key of a leaf's part of what exists per token."""
        return part(word, leaf, self.leaves)

    def token_input(self, kind: str, leaf: str, key: tuple[str, ...] = ()) -> Input:
        return token_input(kind, leaf, self.leaves, key)

    def results(self) -> dict[Key, dict[str, Key]]:
        """For each result in the shape of the batch, the output of every leaf that fills it."""
        found: dict[Key, dict[str, Key]] = {}
        for key, node in self.outputs.items():
            if node.stratum in self.leaves:
                found.setdefault(Key(key.word) if key.word in PER_TOKEN else key, {})[node.stratum] = key
        return found

    @cached_property
    def called(self) -> dict[Key, str]:
        """The name of every output and result."""
        names = Names()
        return {key: names.free(str(key)) for key in dict.fromkeys((*self.outputs, *self.results()))}

    @cached_property
    def given(self) -> dict[Input | Matrix, str]:
        """The name of everything that the caller gives; those of parameters yield to the others."""
        names = Names()
        every: list[Input | Matrix] = [*self.inputs, *self.matrices]
        every.sort(key=lambda i: isinstance(i, Input) and i.kind == "parameter")  # stable
        return {i: names.free(i.word) for i in every}

    @cached_property
    def matrices(self) -> tuple[Matrix, ...]:
        """Those that the program multiplies by."""
        return tuple(dict.fromkeys(n.matrix for n in self.nodes() if isinstance(n, Mix)))

    def nodes(self) -> Iterator[Node]:
        """Every node that an output needs, operands before users, in a fixed order."""
        seen: set[Node] = set()
        stack: list[tuple[Node, bool]] = [(n, False) for n in reversed(list(self.outputs.values()))]
        while stack:
            node, ready = stack.pop()
            if ready:
                yield node
            elif node not in seen:
                seen.add(node)
                stack.append((node, True))
                stack.extend((o, False) for o in reversed(node.operands) if o not in seen)

    @cached_property
    def inputs(self) -> tuple[Input, ...]:
        return tuple(n for n in self.nodes() if isinstance(n, Input))

    @cached_property
    def edges(self) -> tuple[tuple[str, str], ...]:
        """The fibrations that the program sums or broadcasts along, or takes quantiles over."""
        found: dict[tuple[str, str], None] = {}
        for n in self.nodes():
            if isinstance(n, (Push, Pull)):
                found[n.source, n.target] = None
            elif isinstance(n, Quantile):
                found.update(dict.fromkeys((s, n.target) for s in n.sources))
        return tuple(found)

    def mapped(self, rule: Callable[[Node], Node], before: Callable[[Node], Node] = lambda node: node) -> Program:
        """Every node as `rule` makes it of operands that are so already; `before` may choose others first."""
        done: dict[Node, Node] = {}
        for node in self.nodes():
            done[node] = rule(with_operands(before(node), done))
        names: dict[Node, Key] = {}
        for node, key in self.names.items():
            if node in done:
                names.setdefault(done[node], key)
        return replace(self, outputs={k: done[v] for k, v in self.outputs.items()}, names=names)

    def validate(self) -> Program:
        """Check the invariants; raises IRError naming the node."""
        for node in self.nodes():
            problem = _problem(node)
            if problem:
                raise IRError(f"program '{self.name}': {problem}", found=describe(node))
        for name in [*self.called.values(), *map(str, self.names.values()), *self.given.values()]:
            if not name.isidentifier():
                raise IRError(f"program '{self.name}': {name!r} is no identifier")
        return self

    def __str__(self) -> str:
        label = {node: f"%{i}" for i, node in enumerate(self.nodes())}
        lines = [f"program {self.name} ({'leaf' if len(self.leaves) == 1 else 'leaves'} {', '.join(self.leaves)})"]
        for node in self.nodes():
            note = f"   # {self.names[node]}" if node in self.names else ""
            what = f"input {self.given[node]}" if isinstance(node, Input) else describe(node, label)
            lines.append(f"  {label[node]}: {node.stratum} = {what}{note}")
        return "\n".join([*lines, *(f"  return {self.called[k]} = {label[v]}" for k, v in self.outputs.items())])


def describe(node: Node, label: Mapping[Node, str] | None = None) -> str:
    """One line for a node."""
    shown = ", ".join((label or {}).get(o, "...") for o in node.operands)
    if isinstance(node, Input):
        return f"input {node.word}"
    if isinstance(node, Const):
        return repr(node.value)
    if isinstance(node, Push):
        return f"push[{node.source} -> {node.target}, {'wide ' * node.wide}{node.reduce}]({shown})"
    if isinstance(node, Pull):
        return f"pull[{node.source} -> {node.target}]({shown})"
    if isinstance(node, Mix):
        return f"mix[{node.into} <- {node.of}{', transposed' if node.transposed else ''}]({shown})"
    if isinstance(node, Quantile):
        return f"quantile[{', '.join(node.sources)} -> {node.target}]({shown})"
    return f"map[{node.body}]({shown})" if isinstance(node, Map) else f"detach({shown})"


def _problem(node: Node) -> str:
    if isinstance(node, Push) and node.operand.stratum != node.source:
        return f"a push from {node.source} of a vector over {node.operand.stratum}"
    if isinstance(node, Push) and node.reduce not in ("sum", "max"):
        return f"a push with the reduction {node.reduce!r}"
    if isinstance(node, Pull) and node.operand.stratum != node.target:
        return f"a pull from {node.target} of a vector over {node.operand.stratum}"
    if isinstance(node, Mix) and node.operand.stratum != node.source:
        return f"a mix of {node.source} with a vector over {node.operand.stratum}"
    if isinstance(node, Quantile):
        if node.level.stratum != node.target:
            return f"a quantile over {node.target} at a level over {node.level.stratum}"
        if not node.values or len(set(node.sources)) < len(node.values):
            return f"a quantile of {len(node.values)} vectors over {', '.join(node.sources) or 'nothing'}"
    if isinstance(node, Map):
        strata = {o.stratum for o in node.inputs}
        if len(strata) != 1:
            return f"a map over several strata: {', '.join(sorted(strata))}"
        return _scalar_problem(node.body, len(node.inputs), False)
    return ""


def _scalar_problem(body: Scalar, arity: int, condition: bool) -> str:
    if SCALAR_ARITY.get(body.op) != len(body.args):
        return f"the scalar operator {body.op!r} with {len(body.args)} arguments"
    if (body.op in CONDITIONS) != condition:
        return f"{body.op!r} where a {'condition' if condition else 'number'} belongs"
    if body.op == "arg" and not 0 <= int(body.value or 0) < arity:
        return f"the unbound argument {body}"
    conditions = PRIMITIVES[body.op].conditions if body.args else frozenset()
    problems = (_scalar_problem(a, arity, i in conditions) for i, a in enumerate(body.args))
    return next(filter(None, problems), "")
