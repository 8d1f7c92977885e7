"""Smooth gates: every law is proved, and every backend is right near 0 and where their functions saturate."""

from __future__ import annotations

import functools

import pytest
from hierarchies.builders import T, epsilon, one, token, trajectory, two
from oracles.backend_cases import BACKENDS_HERE, F32, F64, Backend, Case, case, holds_gate, holds_training
from support import spread_batch
from thorough import ALL

from fibration import (
    Gate,
    Hierarchy,
    Parameter,
    atan,
    count,
    log,
    log_ratio,
    ratio_deviation,
    residual,
    signed_log_ratio,
    softplus,
    sqrt,
)
from fibration.language.sympy_bridge import to_sympy
from fibration.laws.signs.assumptions import Assumptions
from fibration.laws.signs.claim import Claim

ARC = epsilon * atan(residual / epsilon)
SOFT = 2 * epsilon * (softplus(residual / epsilon) - log(2))  # falls to -2 ln 2 epsilon, rises for ever
HIERARCHIES: dict[str, Hierarchy] = {
    "arc": one(ARC, log_ratio()),
    "soft": one(SOFT, log_ratio()),
    "both levels": two(
        outer=Gate(ARC).per(T), inner=Gate(SOFT).per(1 / count(token, over=trajectory)), split=signed_log_ratio(1 / T)
    ),
}
SCALES = {"near 0": 1e-3, "bent": 0.4, "saturated": 12.0}


@functools.cache
def soft_case(name: str, scale: str, dtype: object, direct: bool) -> Case:
    batch = spread_batch((3, 1, 7, 2, 5), seed=3, scale=SCALES[scale])
    return case(HIERARCHIES[name], batch, dtype, 5, direct)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", HIERARCHIES)
def test_every_law_of_soft_gates_is_proved(name: str) -> None:
    found = HIERARCHIES[name].verify()
    assert found.ok, found
    first_order = [v for v in found.verdicts if v.law in ("identity", "first_order")]
    assert first_order and all(v.status == "proved" for v in first_order)


def test_a_soft_gate_of_another_slope_is_refuted() -> None:
    for gate in (2 * ARC, epsilon * (softplus(residual / epsilon) - log(2)), epsilon * softplus(residual / epsilon)):
        assert any(v.law == "first_order" and v.status == "refuted" for v in one(gate, log_ratio()).verify().verdicts)


@pytest.mark.parametrize(("most", "proved"), [(0.6, True), (0.7, False)])
def test_positivity_of_an_arctangent_gate_needs_a_bound_below_1(most: float, proved: bool) -> None:
    """`1 + C·atan(ρ/C)` is above `1 - C·π/2`, and as near to it as one likes."""
    narrow = Parameter("narrow", default=0.1, upper=most)
    found = one(narrow * atan(residual / narrow / 50), ratio_deviation()).verify().verdicts
    assert [v.status == "proved" for v in found if v.law == "positivity"] == [proved]


def test_proofs_know_the_signs_of_soft_functions() -> None:
    assume = Assumptions(one(ARC).shape)
    signs = {
        softplus(residual): {1},
        atan(residual**2 + 1): {1},
        atan(-epsilon): {-1},
        2 - atan(residual): {1},
        1.57 - atan(residual): {-1, 0, 1},
        atan(residual) + 1.58: {1},
    }
    assert {e: set(assume.signs(to_sympy(e))) for e in signs} == signs
    defined = (1 / softplus(residual), log(softplus(residual)), sqrt(2 + atan(residual)))
    assert all(Claim(e, assume).is_shown for e in defined)
    not_everywhere = (1 / atan(residual), log(atan(residual)), sqrt(1 + atan(residual)))
    assert not any(Claim(e, assume).is_shown for e in not_everywhere)


BUILT = [  # where building takes time, one precision each
    (n, d, b)
    for i, n in enumerate(HIERARCHIES)
    for j, d in enumerate((F64, F32))
    for b in BACKENDS_HERE
    if ALL or b.name == "torch" or (i + j + b.slow) % 2 == 0
]


@pytest.mark.sampled
@pytest.mark.parametrize(("name", "dtype", "backend"), BUILT, ids=str)
@pytest.mark.parametrize("scale", SCALES)
def test_soft_gates_match_the_interpreter(name: str, scale: str, dtype: object, backend: Backend) -> None:
    holds_training(backend, soft_case(name, scale, dtype, False), "padded")
    holds_gate(backend, soft_case(name, scale, dtype, True), "packed")
