"""The meaning of the IR in float64. Tests compare every backend with it. Slow, simple, and without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fibration.compiler.ir import Const, Input, Key, Map, Matrix, Mix, Node, Pull, Push, Quantile, Scalar, Scan
from fibration.compiler.program import Program
from fibration.errors import IRError
from fibration.language.operators import PRIMITIVES

Vector = NDArray[np.float64]


def _sigmoid(x: Any) -> Any:
    # 1/(1 + exp(-x)) without overflow on either side
    e = np.exp(-np.abs(x))
    return np.where(np.asarray(x) >= 0, 1.0 / (1.0 + e), e / (1.0 + e))


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "neg": np.negative,
    "lt": np.less, "le": np.less_equal, "and": np.logical_and, "or": np.logical_or, "not": np.logical_not,
    "select": np.where, "stop": lambda a: a, "exp": np.exp, "expm1": np.expm1, "log": np.log, "log1p": np.log1p,
    "tanh": np.tanh, "sigmoid": _sigmoid, "atan": np.arctan, "sqrt": np.sqrt,
    "softplus": lambda x: np.logaddexp(0.0, x),
}  # fmt: skip
MEANING = {op: _FUNCTIONS[op] for op in PRIMITIVES}  # on numbers and arrays; an overflow gives infinity or NaN


def compute(op: str, *args: float) -> float:
    """One operator on numbers. Infinities and NaN are returned without a warning."""
    with np.errstate(all="ignore"):
        return float(MEANING[op](*(np.float64(a) for a in args)))


@dataclass(frozen=True)
class Sizes:
    """The concrete fibrations: `parents[a, b][i]` is the `b` element under element `i` of `a`; `size` is per stratum.

    `places[a]` are numbers that ascend in the order of the elements of `a` and of the strata that share the order.
    Default: the numbers of the elements.
    """

    parents: Mapping[tuple[str, str], NDArray[np.int64]]
    size: Mapping[str, int]
    places: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)


def interpret(program: Program, inputs: Mapping[Input | Matrix, Any], sizes: Sizes) -> dict[Key, Vector]:
    """Every output of `program`, in float64. `inputs` holds a vector per input, and every matrix.

    Raises IRError if one is missing.
    """
    values: dict[Node, Any] = {}
    with np.errstate(all="ignore"):  # both branches of a select are computed; the one not taken may overflow
        for node in program.nodes():
            values[node] = _value(node, values, inputs, sizes)
    return {k: np.broadcast_to(values[v], (sizes.size[v.stratum],)) for k, v in program.outputs.items()}


def _value(node: Node, values: dict[Node, Any], inputs: Mapping[Input | Matrix, Any], sizes: Sizes) -> Any:
    if isinstance(node, Input):
        if node not in inputs:
            raise IRError(f"no value for the input '{node.word}'")
        return np.broadcast_to(np.asarray(inputs[node], np.float64), (sizes.size[node.stratum],))
    if isinstance(node, Const):
        return np.full(sizes.size[node.stratum], float(node.value))
    if isinstance(node, Map):
        return value_of(node.body, lambda i: values[node.inputs[i]])
    if isinstance(node, Quantile):
        parents = [sizes.parents[source, node.target] for source in node.sources]
        given = [np.broadcast_to(values[v], p.shape) for v, p in zip(node.values, parents, strict=True)]
        return quantiles(np.concatenate(given), np.concatenate(parents), values[node.level])
    if isinstance(node, Scan):
        return scan(node, values, sizes)
    operand = values[node.operands[0]]
    if isinstance(node, Mix):
        if node.matrix not in inputs:
            raise IRError(f"no value for {node.matrix.word}")
        matrix = np.asarray(inputs[node.matrix], np.float64)
        return (matrix.T if node.transposed else matrix) @ np.broadcast_to(operand, (sizes.size[node.source],))
    if isinstance(node, (Push, Pull)):
        parent = sizes.parents[node.source, node.target]
        if isinstance(node, Pull):
            return operand[parent]
        if node.reduce == "max":
            result = np.full(sizes.size[node.target], -np.inf)
            np.maximum.at(result, parent, operand)
            return result
        return np.bincount(parent, weights=operand, minlength=sizes.size[node.target])
    return operand


def scan(node: Scan, values: Mapping[Node, Any], sizes: Sizes) -> Vector:
    """A sum in order at the elements of `node.into`, one element of the order after the other."""
    parent = np.concatenate([sizes.parents[s, node.target] for s in node.sources])
    place = np.concatenate([sizes.places.get(s, np.arange(sizes.size[s])) for s in node.sources])
    x = np.concatenate([np.broadcast_to(values[v], sizes.size[v.stratum]) for v in node.values])
    discount, result = values[node.discount][0], np.zeros(len(x))
    before = np.zeros(sizes.size[node.target])
    for i in np.lexsort((place, parent))[:: 1 if node.forward else -1]:
        result[i] = before[parent[i]]
        before[parent[i]] = discount * (result[i] + x[i])
    ends = np.cumsum([sizes.size[s] for s in node.sources])
    return np.split(result, ends[:-1])[node.sources.index(node.into)]


def quantiles(x: Vector, parent: NDArray[np.int64], level: Vector) -> Vector:
    """The quantile of the values over each element, at the element's level; 0 without values."""
    result = np.zeros(len(level))
    order = np.lexsort((x, parent))  # by element, ascending, NaN last
    ends = np.cumsum(np.bincount(parent, minlength=len(level)))
    for b, mine in enumerate(np.split(x[order] + 0.0, ends[:-1])):
        if len(mine):
            place = level[b] * (len(mine) - 1)
            low = int(place)
            high = min(low + 1, len(mine) - 1)
            result[b] = np.nan if np.isnan(mine[-1]) else _between(mine[low], mine[high], place - low)
    return result


def _between(a: float, b: float, t: float) -> float:
    """`a + t·(b - a)`, computed from the nearer end as numpy does; exactly `a` if `t` is 0 or `b` equals `a`."""
    if t == 0 or a == b:
        return a
    if np.isinf(b - a):
        return a * (1 - t) + b * t
    return a + (b - a) * t if t < 0.5 else b - (b - a) * (1 - t)


def value_of(body: Scalar, argument: Callable[[int], Any], meaning: Mapping[str, Any] = MEANING) -> Any:
    """A body's value, for numbers or arrays. Calls `argument` once for each argument that the body reads.

    `meaning`: what operators make of values of another kind, and `const` of a constant.
    """
    done: dict[Scalar, Any] = {}  # bodies share parts; nested choices share them many times

    def of(part: Scalar) -> Any:
        if part not in done:
            if part.op == "arg":
                done[part] = argument(int(part.value or 0))
            elif part.op == "const":
                done[part] = meaning.get("const", np.float64)(part.value)
            else:
                done[part] = meaning[part.op](*map(of, part.args))
        return done[part]

    return of(body)
