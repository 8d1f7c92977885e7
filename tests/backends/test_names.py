"""The names of the parts of a hierarchy do not change its operator, even names that collide when joined.

Every shape has plain names, and names that collide on purpose, with which it is held against the interpreter.
"""

import re
from dataclasses import dataclass

import numpy as np
import pytest
from oracles.backend_cases import BACKENDS_HERE, F64, case, holds_gate, holds_training
from support import Batch, raw_programs
from thorough import ALL

from fibration import (
    Attribute,
    Fibration,
    Gate,
    Hierarchy,
    MarkovKernel,
    Parameter,
    Stratum,
    aggregate_gate,
    clip_gate,
    count,
    log_ratio,
    proportional,
    residual,
    signed_log_ratio,
    total,
    trajectory_mean,
    uniform,
    where,
)
from fibration.compiler.arguments import signature
from fibration.compiler.fuse import sweeps
from fibration.compiler.lower import lower

LENGTHS = (3, 7, 1, 5, 6, 4)
ROW = np.repeat(np.arange(6), LENGTHS)


def tree(names, parameters):
    """Two leaves, rows, two crossed strata above them: measures, matrices and metrics over several strata."""
    a, b, rows, u, v = (Stratum(n) for n in names)
    p, q, r = (Parameter(n, default=x) for n, x in zip(parameters, (0.125, 0.25, 0.5), strict=True))
    every = lambda s: count(a, over=s) + count(b, over=s)  # noqa: E731
    edges = [(rows, u), (rows, v), (u, Stratum("batch")), (v, Stratum("batch"))]
    return Hierarchy(
        name="tree",
        fibrations=[
            *(Fibration(leaf, rows, MarkovKernel(1 / every(rows))) for leaf in (a, b)),
            *(Fibration(s, t, MarkovKernel(every(s) / every(t))) for s, t in edges),
        ],
        gates={
            Stratum("batch"): clip_gate(4),
            u: clip_gate(r), v: Gate(residual * q), rows: clip_gate(p + r), a: clip_gate(q), b: clip_gate(p),
        },
        decomposition=log_ratio(),
        objective=trajectory_mean(),
        rows=rows,
        orthogonalise="projection",
    )  # fmt: skip


def chain(names, parameters):
    """A leaf, its rows, and a long way down from them; sums along every step, a budget per channel, an attribute."""
    leaf, *others = (Stratum(n) for n in names)
    p, q, r = parameters
    single, shared = Parameter(p, default=0.125), Parameter(q, default=0.5, on=others[-1])
    budget = Parameter(r, per_channel=True, default={"+": 0.5, "-": 0.25})
    weight = Attribute("weight", on=leaf)
    steps = [(leaf, others[0]), *zip(others, others[1:], strict=False)]
    kernels = [proportional(total(weight)), *(uniform() for _ in steps[1:])]
    gates = {s: aggregate_gate(budget, rollback=count(leaf)) for s in others}
    gates[others[1]] = Gate(where(abs(residual) <= single, residual, shared * residual))
    return Hierarchy(
        name="chain",
        fibrations=[Fibration(s, t, k) for (s, t), k in zip(steps, kernels, strict=True)],
        gates={**gates, leaf: clip_gate(single)},
        decomposition=signed_log_ratio(),
        objective=trajectory_mean(),
        rows=others[0],
    )


@dataclass(frozen=True)
class Shape:
    build: object
    plain: tuple[tuple[str, ...], tuple[str, ...]]
    colliding: tuple[tuple[str, ...], tuple[str, ...]]


TREE = (("first", "second", "row", "left", "right"), ("p", "q", "r"))
CHAIN = (("leaf", "row", "one", "two", "three"), ("p", "q", "r"))
SHAPES = {
    "results": Shape(tree, TREE, (("x", "x_plus", "ratio", "ratio_x", "ratio_x_plus"), ("gated_ratio", "gated_ratio_x", "log_prob_x"))),
    "counts": Shape(
        tree, TREE,
        (("x", "x_over_ratio", "ratio", "ratio_over_ratio", "ratio_plus"), ("count_x_over_ratio", "old_log_prob_x", "C_plus")),
    ),
    "matrices": Shape(tree, TREE, (("x", "y", "ratio", "a_of_b", "b_of_a_of_b"), ("matrix_a_of_b_of_a_of_b", "x_of_y", "work"))),
    "layouts": Shape(
        tree, TREE,
        (("x", "x_in_n_x", "n_x", "x_rows", "x_in_n_x_offsets"), ("n_n_x", "x_in_n_x_starts", "advantages")),
    ),
    "metrics": Shape(
        tree, TREE,
        (("x", "x_over_y", "row", "v", "y_over_v"), ("clipped_x_over_y", "ratio_max_x", "nonfinite")),
    ),
    "parents": Shape(
        chain, CHAIN, (("token", "c", "a_of_b", "b_of_c", "a"), ("a_of_b_of_c", "n_c", "token_of_c_of"))
    ),
    "orders": Shape(
        chain, CHAIN, (("token", "p", "q_by_r", "p_by_q", "r"), ("p_by_q_by_r", "r_before_p", "c_offsets"))
    ),
    "channels": Shape(
        chain, CHAIN, (("x", "ratio", "ratio_plus", "ratio_minus", "x_plus"), ("C_plus", "C_minus", "C"))
    ),
    "words": Shape(
        chain, CHAIN, (("log_probs", "log_ratios", "places", "fill", "threads"), ("b", "start", "ratio_plus_2"))
    ),
}  # fmt: skip


# Names are given away before a backend prints them; the slow one shows that it prints these.
CASES = [
    (b, n)
    for b in BACKENDS_HERE
    for n in SHAPES
    if ALL or n == "words" or not (b.slow or n in ("channels", "orders", "metrics", "layouts"))
]


def built(shape, which):
    names, parameters = getattr(shape, which)
    return shape.build(names, parameters)


def batch_for(shape, which):
    """The same tokens under either names; elements of coarser strata are not in the order of rows."""
    names, _ = getattr(shape, which)
    rng = np.random.default_rng(5)
    x, advantages = rng.normal(scale=0.4, size=(2, len(ROW)))
    if shape.build is tree:
        first, second, _, left, right = names
        image = np.arange(len(ROW)) % 3 == 0
        tokens = {first: (~image).tolist(), second: image.tolist()}
        labels = {left: [2, 0, 1, 0, 2, 1], right: [1, 0, 0, 1, 1, 1]}
        return Batch(LENGTHS, x, advantages, labels, tokens)
    _, _, one, two, three = names
    labels = {one: [3, 1, 3, 0, 1, 2], two: [1, 0, 1, 1, 0, 0], three: [0, 1, 0, 0, 1, 1]}
    return Batch(LENGTHS, x, advantages, labels, weights=1 + np.arange(len(ROW)) % 4 / 2)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("backend", "name"), [pytest.param(b, n, marks=pytest.mark.thorough) if b.name != "torch" else (b, n) for b, n in CASES],
    indirect=["backend"], ids=str,
)  # fmt: skip
def test_operators_with_colliding_names_match_the_interpreter(name, backend):
    shape = SHAPES[name]
    given = built(shape, "colliding"), batch_for(shape, "colliding"), F64
    holds_training(backend, case(*given), "packed")
    holds_gate(backend, case(*given, direct=True), "padded")


def printed(hierarchy):
    """The names of outputs, inputs and arguments, of which none may be there twice."""
    programs = [lower(hierarchy), *raw_programs(hierarchy).values()]
    found = [list(names.values()) for p in programs for names in (p.called, p.given)]
    found += [[a.name for a in signature(sweeps(p, hierarchy.rows.name)).arguments] for p in programs[1:]]
    for names in found:
        assert len(set(names)) == len(names)
    return {name for names in found for name in names}


@pytest.mark.sampled
@pytest.mark.parametrize("name", [n for n in SHAPES if n != "words"])
def test_colliding_names_get_numbers(name):
    """Some are told apart by a number, which no plain name needs."""
    assert not [n for n in printed(built(SHAPES[name], "plain")) if re.search(r"\d", n)]
    assert [n for n in printed(built(SHAPES[name], "colliding")) if re.search(r"\d", n)]
