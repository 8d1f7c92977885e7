"""Names that users choose, and words of the generated code: keywords, macros, functions, and names made of them."""

import shutil

import pytest
import torch

import fibration
from fibration import (
    Fibration,
    Hierarchy,
    Parameter,
    clip_gate,
    exp,
    identity_gate,
    log_prob,
    log_ratio,
    policies,
    strata,
    token_mean,
    uniform,
)

MACROS = "NULL SIZE_MAX I INFINITY INT64_MAX EOF BUFSIZ DTYPE_advantages WHOLE_NULL REAL RESULT MATH AT math_errhandling errno"
WORDS = "restrict main linux tl jnp lax np self bits_f64 reduced_f64 column longest places parts block sum_f64 x exp_f64 NULL_2"


def loss(parameters: list[str], stratum: str, policy: str) -> Hierarchy:
    token, coarse = strata(f"token {stratum}")
    old, frozen = policies(f"old {policy}")
    weight = exp(log_prob(old) - log_prob(frozen))
    for name in parameters:
        weight = weight * Parameter(name, default=1.5, lower=0.1)
    return Hierarchy(
        name="named",
        fibrations=[Fibration(token, coarse, kernel=uniform())],
        gates={coarse: identity_gate(), token: clip_gate(0.05)},
        decomposition=log_ratio(),
        objective=token_mean().weigh(weight),
        gives_up={"agreement": "parameters that are not 1"},
    )


@pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a C compiler")
@pytest.mark.parametrize(("stratum", "policy"), [("SHORT", "OLD"), pytest.param("first", "DTYPE_old", marks=pytest.mark.thorough)])
def test_names_of_c_and_python_are_no_names_of_values(stratum: str, policy: str) -> None:
    names = [*MACROS.split(), *WORDS.split()]
    x = torch.tensor([-0.5, -0.6, -0.7], dtype=torch.float64)

    def coefficients(backend: str, h: Hierarchy) -> torch.Tensor:
        op = fibration.compile(h, backend)
        index = op.index(offsets=torch.tensor([0, 2, 3]), **{s.name: [0, 1] for s in h.strata if s.name == stratum})
        of = {name: x - 0.1 for name in h.policies if name in (policy, "plain")}
        return op.coefficients(x, x - 0.04, torch.tensor([1.0, 2.0]), index, policies=of).values

    odd = loss(names, stratum, policy)
    plain = loss([f"p{i}" for i in range(len(names))], stratum, "plain")
    expected = coefficients("torch", plain)
    for backend in ("c", "torch"):
        torch.testing.assert_close(coefficients(backend, odd), expected)
