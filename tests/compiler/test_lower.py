"""Lowering: the outputs of a program, the strata that it reaches, and names that do not collide."""

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
from hierarchies.levels import two_levels
from oracles.interpreter import Interpreter
from support import Stratum, operator, packed, prompt_group, raw_programs, spec, spread_batch, token, trajectory
from thorough import some

from fibration import (
    Attribute,
    Fibration,
    Gate,
    Hierarchy,
    Parameter,
    aggregate_gate,
    clip_gate,
    count,
    exp,
    identity_gate,
    log_ratio,
    minimum,
    proportional,
    residual,
    signed_log_ratio,
    total,
    trajectory_mean,
    uniform,
    where,
)
from fibration.compiler.ir import Key, Push
from fibration.compiler.lower import lower
from fibration.language.expressions import as_expression

C, k, eps = (Parameter(n, default=0.5) for n in ("C", "k", "eps"))
weight = Attribute("weight", on=token)


def test_a_lowered_program_has_the_expected_outputs():
    p = lower(spec("fiberpo"))
    assert list(map(str, p.outputs)) == [
        "gated_ratio", "objective",
        "residual_trajectory_plus", "gated_trajectory_plus", "residual_token_plus", "gated_token_plus",
        "down_token_plus", "residual_trajectory_minus", "gated_trajectory_minus", "residual_token_minus", "gated_token_minus",
        "down_token_minus",
    ]  # fmt: skip
    assert p.outputs[Key("objective")].stratum == "batch"
    assert p.outputs[Key("gated_ratio")].stratum == "token"
    assert p.outputs[Key("gated", "trajectory", "+")].stratum == "trajectory"


def test_constant_gates_are_lowered():
    for formula, expected in ((exp(minimum(0, 1)) - 1, 0.0), (as_expression(Fraction(1, 3)) + 0, 1 / 3)):
        h = two_levels(Gate(formula), identity_gate(), log_ratio())
        batch = spread_batch()
        found = Interpreter.of(h, batch).run("levels")["gated_trajectory"]  # intensive: per token
        assert found == pytest.approx(expected / np.array(batch.lengths), abs=1e-300)


def test_a_lowered_program_has_no_edge_across_trajectories():
    """The Jacobian of FiberPO is block-diagonal over trajectories (prop:traj_independence); its edges say so already."""

    def edges(name):
        program = raw_programs(spec(name))["gate"]
        return set(dataclasses.replace(program, outputs={Key("ratio"): program.outputs[Key("gated_ratio")]}).edges)

    assert edges("fiberpo") == {("token", "trajectory"), ("token", "batch")}
    assert edges("ppo") == {("token", "batch")}


def test_objectives_are_summed_over_rows_first():
    p = lower(spec("ppo"))
    objective = p.outputs[Key("objective")]
    assert isinstance(objective, Push)
    assert (objective.source, objective.target) == ("trajectory", "batch")


COLLIDING = [
    "count_token_over_trajectory", "count_trajectory_over_batch", "advantage_trajectory", "total_weight_over_trajectory",
    "attribute_weight", "C_plus", "C_minus_2", "cotangent_2", "ratio", "push", "spread", "fibre", "math", "float",
    "inputs", "over", "gated_token_plus_1", "gated_trajectory_plus_1", "gated_trajectory_minus_1", "objective_of_token",
    "d_ratio", "coefficients_2", "evaluate", "x", "f",
]  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("name", some(COLLIDING, 2))
def test_a_parameter_may_share_its_name_with_anything_generated(name):
    """The same operator, whatever the parameter is called."""
    batch = spread_batch(scale=0.4)

    def gates(p):
        budget = Parameter("C", per_channel=True, default={"+": 0.125, "-": 0.25})
        return {
            prompt_group: clip_gate(p),  # read first here, and again after the trajectory's gate has used temporaries
            trajectory: aggregate_gate(budget, rollback=count(token)),
            token: Gate(where(abs(residual) <= p, residual, total(weight, over=trajectory) * 0 + p)),
        }

    def build(p):
        return Hierarchy(
            name="named",
            fibrations=[
                Fibration(token, trajectory, proportional(total(weight))),
                Fibration(trajectory, prompt_group, uniform()),
            ],
            gates=gates(p),
            decomposition=signed_log_ratio(),
            objective=trajectory_mean(),
        )

    found = []
    for op in (operator(build(Parameter(n, default=0.0625))) for n in ("plain", name)):
        layout = packed(op, batch)
        result = op.coefficients(*(layout.tensor(v) for v in (batch.x, batch.x * 0, batch.advantages)), layout.index)
        found.append((result.values.tolist(), {k: float(v) for k, v in result.metrics.items()}))
    assert found[0] == found[1]


def test_a_stratum_may_share_its_name_with_a_temporary():
    """A stratum called token_1 has a gate value called gated_token_1, and so had a temporary of token's gate."""

    def build(name):
        middle = Stratum(name)
        return Hierarchy(
            name="named",
            fibrations=[Fibration(token, middle, uniform()), Fibration(middle, prompt_group, uniform())],
            gates={s: aggregate_gate(Parameter("C", default=0.125), rollback=3) for s in (token, middle, prompt_group)},
            decomposition=log_ratio(scale=1 / count(token, over=middle)),
            objective=trajectory_mean(),
            rows=middle,
        )

    batch = spread_batch(scale=0.4)
    found = []
    for name in ("sample", "token_1", "token_2", "prompt_group_1"):
        op = operator(build(name))
        layout = packed(op, batch)
        result = op.coefficients(*(layout.tensor(v) for v in (batch.x, batch.x * 0, batch.advantages)), layout.index)
        found.append((layout.read(result.values).tolist(), [float(v) for v in result.metrics.values()]))
    assert all(f == found[0] for f in found)
