"""Triton's interpreter with the programs of every launch in random order, so that any program may be the last."""

import random

import pytest
import torch
from hierarchies.batch_of_every_regime import batch_of_every_regime
from hierarchies.random_quivers import batch_for
from oracles.backend_cases import Backend, Case, case, triton_interprets
from support import OF_EVERY_KIND, spec
from thorough import ALL

pytestmark = pytest.mark.skipif(not triton_interprets(), reason="kernels are compiled where there is a GPU")
TRITON = Backend("triton")


def results(given: Case) -> dict[str, list[float]]:
    """Everything that the programs give, with all their bits."""
    op, layout = TRITON.operator(given.hierarchy), given.layout(TRITON, "packed")
    now, old, advantages = given.tensors(layout)
    found = {}
    for metrics in (False, True) if ALL else (False,):
        made = op.coefficients(now, old, advantages, layout.index, given.batch.parameters, metrics=metrics)
        found[f"coefficients {metrics}"] = [*made.values.tolist(), float(made.objective)]
        found |= {key: [float(value)] for key, value in made.metrics.items()}
    if not ALL:
        return found
    x = (now - old).requires_grad_()
    gated = op.gate(x, layout.index, given.batch.parameters, advantages=advantages)
    gated.backward(torch.cos(now))
    return {**found, "gated ratios": gated.tolist(), "gradient": x.grad.tolist()}


@pytest.mark.parametrize("name", OF_EVERY_KIND if ALL else ["fiberpo_domain"])
def test_programs_in_any_order_give_the_same_bits(name, monkeypatch):
    from triton.runtime.interpreter import interpreter_builder as builder

    h, number = spec(name), OF_EVERY_KIND.index(name)
    given = case(
        h, batch_of_every_regime() if name == "fiberpo_domain" else batch_for(h, number), torch.float32, number
    )
    wanted, launches = results(given), []
    launch, program = builder.set_grid_dim, builder.set_grid_idx
    choose = random.Random(0)

    def shuffled(*grid: int) -> None:
        launches.append(choose.sample(range(grid[0]), grid[0]))
        launch(*grid)

    monkeypatch.setattr(builder, "set_grid_dim", shuffled)
    monkeypatch.setattr(builder, "set_grid_idx", lambda x, y, z: program(launches[-1][x], y, z))
    for _ in range(3 if ALL else 2):
        assert repr(results(given)) == repr(wanted)
    if name == "fiberpo_domain":
        assert len({order[-1] for order in launches}) > 2
