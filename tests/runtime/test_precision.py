"""A warning comes if rounding changes the regimes of elements: once per operator, and in no other case."""

import functools
import warnings

import pytest
import torch
from support import fresh, operator, prompt_group, spec, trajectory

from fibration import PrecisionWarning
from fibration.runtime.parameters import parameter_values
from fibration.runtime.precision import narrowest

ROWS = 256
BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


@functools.cache
def a_batch(length, drift):
    """Log-probs of a sampler, -1 on average, and of a policy that has moved from it: float64."""
    make = torch.Generator().manual_seed(length)
    old = torch.rand(ROWS, length, dtype=F64, generator=make).log()
    new = (old + drift * torch.randn(ROWS, length, dtype=F64, generator=make)).clamp(max=0)
    return new, old, torch.randn(ROWS, generator=make)


def warnings_of(call):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return [w for w in found if issubclass(w.category, PrecisionWarning)]


# What is read, log-probs now and when sampled, tokens per row, parameters: whether it warns
CASES = {
    "one in five": ("gspo", BF16, F32, 16, {}, True),
    "one in twelve": ("gspo", BF16, BF16, 256, {}, True),
    "fewer bits, short rows": ("gspo", F16, F32, 16, {}, True),
    "fewer bits, long rows": ("gspo", F16, F32, 1024, {}, False),
    "wide": ("ppo", BF16, F32, 16, {}, False),
    "two levels": ("fiberpo", BF16, BF16, 16, {}, False),
    "a narrow budget": ("fiberpo", BF16, BF16, 16, {"C_trajectory": {"+": 0.2, "-": 0.004}}, True),
    "float32": ("gspo", F32, F32, 16, {}, False),
    "float32 and float64": ("gspo", F32, F64, 16, {}, False),
}


@pytest.mark.sampled
@pytest.mark.parametrize("which", CASES)
def test_rounding_that_changes_regimes_is_warned_about(which):
    """Of those who are, rounding takes more than one element in a hundred into another regime; of the others, fewer."""
    name, dtype, old_dtype, length, parameters, warned = CASES[which]
    op = fresh(name)
    new, old, a = a_batch(length, 0.003 if name == "gspo" else 0.01)
    index = op.index(mask=torch.ones(new.shape))
    given = new.to(dtype), old.to(old_dtype)
    found = warnings_of(lambda: op.coefficients(*given, a, index, parameters, metrics=False))
    assert len(found) == warned
    one, other = (
        op.levels(x, index, parameters, advantages=a.double())
        for x in (new - old, given[0].double() - given[1].double())
    )
    kinds = [
        {k: torch.where(found.gated[k] == r, 0, 1 + (found.gated[k] == 0)) for k, r in found.residual.items()}
        for found in (one, other)
    ]
    read = [key for key in kinds[0] if not (name == "gspo" and key[0] == "token")]
    worst = max(float((kinds[0][k] != kinds[1][k]).double().mean()) for k in read)
    assert (worst > 0.01) is warned


def test_the_precision_warning_has_the_expected_text():
    op = fresh("gspo")
    new, old, a = a_batch(16, 0.003)
    index = op.index(mask=torch.ones(new.shape))
    call = lambda: op.loss(new.to(BF16), old.float(), a, index)  # noqa: E731
    (found,) = warnings_of(call)
    assert found.filename == __file__
    text = str(found.message)
    assert "'gspo' is given log-probs of bfloat16 and float32" in text
    assert "their spacing is 0.0078" in text and " 0.016" in text  # eps of bfloat16 between 1 and 2, and twice that
    assert "a trajectory of this batch by about 0.0006 nats" in text  # 2**-7 / sqrt(12 * 16)
    assert "the gate on trajectory passes 0.0003" in text  # log1p(-epsilon_low)
    assert "float32" in text
    assert not warnings_of(call)
    assert not warnings_of(lambda: op.gate((new - old).to(BF16), index, advantages=a))


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gspo", {"trajectory": {"trajectory": 3e-4}, "token": {}}),
        ("ppo", {"token": {"token": 0.2}}),
        ("gspo_token", {"trajectory": {}, "token": {"trajectory": 3e-4}}),
        ("fiberpo", {"trajectory": {"trajectory": 0.1}, "token": {"token": 0.05}}),
        (
            "fiberpo_domain",
            {s: {s: 0.05 if s == "token" else 0.1} for s in ("domain", "prompt_group", "trajectory", "token")},
        ),
        ("sapo", {"token": {}}),
    ],
)
def test_the_first_breakpoint_of_a_gate_is_in_nats(name, expected):
    """In nats, whatever the units: of the declared defaults, and of numbers per element the least."""
    h = spec(name)
    op = operator(h)
    labels = {s.name: [0, 0] for s in h.order if s not in (*h.leaves, h.rows)}
    index = op.index(mask=torch.ones(2, 3), **labels)
    numbers = parameter_values(h, op.programs["evaluate"], index, {})
    found = {s.name: narrowest(h, s, numbers) for s in h.order}
    assert found == {s: pytest.approx(at, rel=2e-3) for s, at in expected.items()}
    if name == "fiberpo_domain":
        numbers = parameter_values(h, op.programs["evaluate"], index, {"C_prompt_group": {0: {"+": 0.02, "-": 0.3}}})
        assert narrowest(h, prompt_group, numbers) == pytest.approx({"prompt_group": 0.02}, rel=2e-3)
        assert narrowest(h, trajectory, numbers) == pytest.approx({"trajectory": 0.1}, rel=2e-3)
