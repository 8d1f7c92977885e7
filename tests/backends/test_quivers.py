"""Trees and quivers on every backend against the dense matrices of `matrices.py`, which know nothing of how it is computed.

Tolerances are those of `test_chains.py`: a bound on what rounding can do, carried through the interpreter's program.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hierarchies.quivers import mine
from hierarchies.random_quivers import (
    CASES,
    COUNT,
    KINDS,
    PARTIAL,
    PROJECTED,
    QUIVERS,
    ROOTLESS,
    TREES,
    plain,
    quiver,
    written,
)
from oracles.backend_cases import (
    BACKENDS_HERE,
    F32,
    F64,
    ROUNDOFF,
    TORCH,
    Backend,
    Case,
    holds_random,
    holds_training,
)
from oracles.dense_case import DenseCase, dense_case
from oracles.matrices import World, dense
from support import spec, token, trajectory
from thorough import ALL, some

from fibration import Fibration, Hierarchy, count, log_ratio, proportional, uniform
from fibration.language.atoms import Density
from fibration.language.gates import Gate
from fibration.language.grammar import CONSTRUCTORS
from fibration.language.traversal import atoms
from fibration.runtime.metrics import Mean

MIX = (F64, F32, F64, torch.bfloat16, F64, F32, torch.float16)


@functools.cache
def random_case(seed: int, dtype: torch.dtype, direct: bool = False, small: bool = False) -> DenseCase:
    return dense_case(quiver(seed), seed, dtype, direct, small=small)


def seeds_of(b: Backend) -> list[int]:
    """Which random ones a backend gets: building takes time. Trees and quivers alternate, trees in cycles of eight."""
    if ALL:
        return list(range(COUNT))
    slow, built = list(range(1, COUNT, 11)), [s for s in range(COUNT) if (s // 2 + s // 16) % 4 == 2]
    return slow if b.slow else sorted({*slow, *built}) if b.name == "torch" else built


def on_backends():
    pairs = [(s, b) for s in range(COUNT) for b in BACKENDS_HERE if s in seeds_of(b)]
    return pytest.mark.parametrize(("seed", "backend"), pairs, ids=lambda v: str(v))


# ---------------------------------------------------------------- the definition


@pytest.mark.sampled
@pytest.mark.parametrize("seed", [s for s in range(COUNT) if ALL or (s // 2 + s // 16) % 8 == 1])
def test_the_interpreter_equals_dense_matrices(seed):
    """Values, coefficients, the adjoint, and every level, of the program as lowered."""
    c = random_case(seed, F64)
    layout = c.layout(TORCH, "packed")
    interpreted = Case.bounds(c, layout, ROUNDOFF[F64])
    for name, more in (
        ("evaluate", {}),
        ("gate", {}),
        ("levels", {}),
        ("gate_adjoint", {"cotangent": np.cos(1 + np.arange(c.batch.tokens))}),
    ):
        expected = c.bounds(layout, ROUNDOFF[F64]).run(name, **more)
        found = interpreted.run(name, **more)
        assert found.keys() == expected.keys()
        for word, value in found.items():
            expected[word].check(value.value, F64, word)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", some(range(0, COUNT, 4), 3))
def test_dense_slopes_equal_differences_of_dense_values(seed):
    """Central differences, wherever both sides agree on the slope."""
    c = dense_case(quiver(seed), seed, small=True, zeros="none")
    x = c.batch.x.astype(np.longdouble)

    def values(step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = dense(c.hierarchy, replace(c.batch, x=x + step), c.now)
        return found.ratio.value, found.objective.value

    for i in range(0, c.batch.tokens, 3):
        e = np.zeros_like(x)
        e[i] = 1
        differences = []
        for h in (1e-6, 2e-7):
            (up, j_up), (down, j_down) = values(h * e), values(-h * e)
            differences.append((np.append((up - down), (j_up - j_down)) / (2 * h)).astype(float))
        slopes = np.append(c.dense.ratio.slope[:, i], c.dense.coefficients[i]).astype(float)
        if c.hierarchy.objective.estimator == "score":
            differences, slopes = [d[:-1] for d in differences], slopes[:-1]
        scale = max(np.abs(slopes).max(), 1.0)
        smooth = np.abs(differences[0] - differences[1]) <= 1e-7 * scale
        assert smooth.mean() > 0.5
        assert slopes[smooth] == pytest.approx(differences[1][smooth], rel=1e-7, abs=1e-7 * scale)


# ---------------------------------------------------------------- every backend


@pytest.mark.sampled
@on_backends()
def test_random_quivers_match_dense_matrices(seed, backend):
    holds_random(backend, partial(random_case, seed, MIX[seed % len(MIX)]), seed)


# ---------------------------------------------------------------- laws, in numbers

SHAPES = [(k, False) for k in KINDS] + [(k, True) for k in PROJECTED]
BY_SIGN = [(*shape, bool(signed)) for i, shape in enumerate(SHAPES) for signed in (0, 1) if ALL or i % 4 == 3 * signed]


@pytest.mark.sampled
@pytest.mark.parametrize(("name", "projected", "signed"), BY_SIGN)
def test_identity_gates_pass_the_ratio_on_every_shape(name, projected, signed):
    """On every shape: the gated ratio is the ratio, and coefficients are the policy gradient's."""
    h = plain(name, projected, seed=len(name), signed=signed)
    for zeros in ("some", "all"):
        c = dense_case(h, 5, zeros=zeros)
        layout = c.layout(TORCH, "padded")
        now, old, a = c.tensors(layout)
        assert np.abs(c.dense.ratio.value - np.exp(c.batch.x.astype(np.longdouble))).max() < 1e-17
        assert np.abs(c.dense.ratio.slope - np.diag(c.dense.ratio.value)).max() < 1e-16
        op = TORCH.operator(h)
        found = op.gate(layout.tensor(c.batch.x), layout.index, c.batch.parameters, advantages=a)
        assert layout.read(found) == pytest.approx(np.exp(c.batch.x), rel=1e-14)
        result = op.coefficients(now, old, a, layout.index, c.batch.parameters)
        world = c.dense.world
        mu = np.array([float(world.exact(h.objective.weight, h.rows.name)[world.number[h.rows.name][e]])
                       for e in world.label[h.rows.name]])  # fmt: skip
        wanted = mu * c.batch.advantages * np.exp(c.batch.x)
        assert layout.read(result.values) == pytest.approx(wanted, rel=1e-12, abs=1e-15 * np.abs(wanted).max())


def leaks(c: DenseCase) -> tuple[float, float]:
    """The largest mean that residuals have over any coarser element, from an operator and from the dense residuals.

    Where several strata lie over one, theirs are summed together: each alone need not vanish.
    """
    layout, world = c.layout(TORCH, "packed"), c.dense.world
    op = TORCH.operator(c.hierarchy)
    x, _, a = c.tensors(layout)
    levels = op.levels(x, layout.index, c.batch.parameters, advantages=a)
    largest, expected = 0.0, 0.0
    for channel in c.hierarchy.decomposition.channels:
        for u, together in joint(world):
            found, wanted = 0.0, 0.0
            for v in together:
                sums = world.pushforward(v, u)
                found = found + sums @ (levels.residual[v, channel].numpy() * world.long_mass(v)) / world.long_mass(u)
                wanted = wanted + c.dense.leak(v, u, channel)
            assert np.abs(found - wanted).max() <= 1e-12, (u, together)
            largest, expected = max(largest, np.abs(found).max()), max(expected, np.abs(wanted).max())
    return float(largest), float(expected)


def joint(world: World):
    """Strata with the coarser ones over which all their residuals together should vanish."""
    leaves = {s: {leaf for leaf in world.leaves if leaf == s or s in world.coarser(leaf)} for s in world.targets}
    for u in world.targets:
        finer = [s for s in world.targets if u in world.coarser(s)]
        for v in finer:
            if leaves[v] == leaves[u]:
                yield u, [v]
        direct = [s for s in finer if u in world.targets[s]]
        if direct and sum(len(leaves[s]) for s in direct) == len(leaves[u]):
            yield u, direct


def plain_case(name: str, projected: bool = False, **kinds: Any) -> DenseCase:
    h = plain(name, projected, seed=1)
    return dense_case(h, 8, direct=True, zeros="some", **kinds)


def orthogonality(h: Hierarchy) -> set[str]:
    """What the verifier says of its residuals; nothing where kernels with parameters keep it from being asked."""
    return {v.status for v in mine(h) if v.law == "orthogonality"}


@pytest.mark.sampled
@pytest.mark.parametrize("name", TREES)
def test_residuals_of_trees_are_orthogonal(name):
    c = plain_case(name)
    assert orthogonality(c.hierarchy) <= {"proved"}
    assert max(leaks(c)) < 1e-14
    assert np.abs(c.batch.x).max() > 0.05


@pytest.mark.sampled
@pytest.mark.parametrize("name", [q for q in QUIVERS if q not in (*ROOTLESS, PARTIAL)])
def test_residuals_of_balanced_crossings_are_orthogonal(name):
    assert max(leaks(plain_case(name, balanced=True))) < 1e-14


@pytest.mark.sampled
@pytest.mark.parametrize("name", PROJECTED)
def test_projected_residuals_are_orthogonal(name):
    c = plain_case(name, projected=True)
    assert orthogonality(c.hierarchy) == {"proved"}
    assert max(leaks(c)) < 1e-12
    assert np.abs(c.batch.x).max() > 0.05


@pytest.mark.sampled
@pytest.mark.parametrize("name", QUIVERS)
def test_residuals_of_unbalanced_crossings_are_not_orthogonal(name):
    """Nor are those of crossings without a common root; and what leaks is what the definition says."""
    h = plain(name, seed=1)
    assert "refuted" in orthogonality(h)
    pairs = [leaks(dense_case(h, seed, direct=True, balanced=name in ROOTLESS, zeros="some"))
             for seed in range(8, 14)]  # fmt: skip
    for found, expected in pairs:
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-15)
    assert max(expected for _, expected in pairs) > 1e-4


# ---------------------------------------------------------------- metrics


@pytest.mark.sampled
@pytest.mark.parametrize("seed", some(range(COUNT), 6))
def test_every_element_has_one_regime_and_metrics_add_up(seed):
    """Every element is in one regime, parts add up to the whole, drifts are those of the dense residuals."""
    c = random_case(seed, F64)
    layout = c.layout(TORCH, "packed")
    now, old, a = c.tensors(layout)
    metrics = TORCH.operator(c.hierarchy).coefficients(now, old, a, layout.index, c.batch.parameters).metrics
    world = c.dense.world
    for (stratum, channel), rho in c.dense.residual.items():
        key = f"{stratum}/{channel}" if channel else stratum
        elements = len(world.elements[stratum])
        regimes = [metrics[f"{key}/{r}"] for r in ("passed", "rolled_back", "zeroed", "limited", "attenuated")]
        assert all(float(r.count) == elements for r in regimes)
        assert sum(float(r.sum) for r in regimes) == pytest.approx(elements)
        drift = np.abs(rho.value / world.long_mass(stratum)).astype(float)
        assert float(metrics[f"{key}/drift"]) == pytest.approx(drift.mean(), rel=1e-9, abs=1e-15)
        assert float(metrics[f"{key}/drift_max"]) == pytest.approx(drift.max(), rel=1e-9, abs=1e-15)
        for word in ("passed", "drift"):
            parts: dict[str, list[Mean]] = {}
            for name, metric in metrics.items():
                if name.startswith(f"{key}/{word}["):
                    parts.setdefault(name.split("[")[1].split("=")[0], []).append(metric)
            for over, means in parts.items():
                whole = metrics[f"{key}/{word}"]
                assert sum(float(m.count) for m in means) == float(whole.count), over
                assert sum(float(m.sum) for m in means) == pytest.approx(float(whole.sum), rel=1e-9, abs=1e-15), over
    ratio = c.dense.ratio.value.astype(float)
    assert float(metrics["gated_ratio/max"]) == pytest.approx(ratio.max(), rel=1e-9)
    assert float(metrics["gated_ratio/min"]) == pytest.approx(ratio.min(), rel=1e-9)
    rows = np.unique(c.batch.row)
    x = c.batch.x
    for name, of_token in (("tv", np.abs(np.expm1(x))), ("kl", -x)):
        wanted = np.mean([of_token[c.batch.row == r].mean() for r in rows])
        assert float(metrics[name]) == pytest.approx(wanted, rel=1e-9, abs=1e-15)


# ---------------------------------------------------------------- what once was wrong


def test_an_empty_branch_adds_nothing():
    """A kernel may divide by the count of its own branch: where that is empty, its mean is 0, and not 0/0."""
    drawn = (quiver(seed) for seed in range(COUNT))
    h = next(h for h in drawn if any("where(count(image" in str(f) and " > 0" in str(f) for f in h.fibrations))
    c = next(c for c in (dense_case(h, s) for s in range(30)) if _has_empty_branch(c))
    assert np.isfinite(c.dense.ratio.value).all()
    for kind in ("padded", "packed"):
        holds_training(TORCH, c, kind)


def _has_empty_branch(c: DenseCase) -> bool:
    world = c.dense.world
    counts = [world.count(leaf, s) for leaf in world.leaves for s in world.coarser(leaf)]
    return any(0 in count for count in counts)


def test_the_mass_of_a_token_does_not_depend_on_how_its_kernel_is_written():
    per_token = log_ratio(scale=1 / count(token, over=trajectory))
    first, *rest = spec("fiberpo").fibrations
    masses = []
    for kernel in (uniform(), proportional(count(token))):
        kernels = [Fibration(first.source, first.target, kernel), *rest]
        masses.append(spec("fiberpo").replace(fibrations=kernels, decomposition=per_token).masses)
    assert masses[0] == masses[1]


# ---------------------------------------------------------------- the lot is varied


@pytest.mark.thorough
def test_the_random_quivers_cover_every_kind():
    """Or the tests above show less than they seem to."""
    drawn = [quiver(seed) for seed in range(COUNT)]
    assert COUNT >= 60
    assert {CASES[s].removesuffix(", projected") for s in range(COUNT)} == set(KINDS)
    for b in BACKENDS_HERE:
        met = [CASES[s] for s in seeds_of(b)]
        plain_ones = [name for name in met if name in KINDS]
        assert len(set(plain_ones) & set(TREES)) >= (3 if b.slow else 6), b
        assert len(set(plain_ones) & set(QUIVERS)) >= (3 if b.slow else 6), b
        assert sum("projected" in name for name in met) >= (1 if b.slow else 4), b
    words = " ".join(written(h) for h in drawn)
    for made in CONSTRUCTORS.values():
        if made.kind is Gate and made.name != "zero_gate":
            assert made.name in words, made.name
    for word in ("advantage", "tanh", "sigmoid", "sqrt", "log1p", ".per(mass)", ".score()", "total(", "where(count(",
                 "ratio_deviation", "scale=mass", "scale=1/", "> 0"):  # fmt: skip
        assert word in words, word
    read = [a for h in drawn for g in h.gates.values() for a in atoms(g.expression) if isinstance(a, Density)]
    assert sum(a.channel is None for a in read) > 10
    assert sum(a.channel == "-" for a in read) > 2
    cases = [random_case(seed, F64) for seed in range(0, COUNT, 3)]
    assert sum(_has_empty_branch(c) for c in cases) > 1
    assert sum(1 in c.batch.lengths for c in cases) > 6
    assert sum(0 in c.batch.lengths for c in cases) > 3
    assert sum((c.batch.x == 0).all() for c in cases) > 1
    changed = [np.abs(c.dense.ratio.value - np.exp(c.batch.x)).max() > 1e-3 for c in cases]
    assert sum(changed) > 10
    limited = sum(
        any(bool((np.abs(c.dense.gated[k].value - rho.value) > 1e-6).any()) for k, rho in c.dense.residual.items())
        for c in cases
    )
    assert limited > 13
