"""What is constant on a fibre is computed once, and leaves the sums."""

import math

import numpy as np
import pytest
import torch
from oracles.programs import program, run, x, y, z
from support import SPECS, operator, programs, spec

from fibration.compiler.fuse import sweeps
from fibration.compiler.interpret import Sizes, interpret
from fibration.compiler.ir import BATCH, Const, Input, Key, Map, Pull, Push, arg, const, count_input, scalar
from fibration.compiler.optimise import UNLESS, hoist, optimise, subtracted
from fibration.compiler.plan import Pass
from fibration.compiler.program import Program

w = Input("w", "coarse", "w")
Z, W = Pull("fine", "coarse", z), Pull("fine", "coarse", w)
N = Pull("fine", "coarse", count_input("fine", "coarse"))
E = Pull("fine", "coarse", Map(scalar("exp", arg(0)), (z,)))
VALUES = {
    "x": np.array([0.5, -2.0, 3.0, 0.0, 1.5, -0.25]),
    "y": np.array([1.0, -1.0, 2.0, -3.0, 0.0, 4.0]),
    "z": np.array([0.7, -1.3, 2.1]),
    "w": np.array([-0.4, 5.0, 0.3]),
    "count_fine_over_coarse": np.array([2.0, 1.0, 3.0]),
}


def of(op, *inputs):
    return Map(scalar(op, *map(arg, range(len(inputs)))), inputs)


def chosen(a, b):
    return Map(scalar("select", scalar("lt", arg(0), const(0.0)), arg(1), arg(2)), (x, a, b))


def total(node, reduce="sum"):
    return Push("fine", "coarse", node, reduce)


def pulls(node):
    """The values of segments that a sum reads at its tokens."""
    found, waiting = set(), [node.operand]
    while waiting:
        n = waiting.pop()
        if isinstance(n, Pull):
            found.add(n.operand)
        else:
            waiting += n.operands
    return found


ZERO = Const(0.0, "fine")
LEAVES = {
    "a product": of("mul", Z, x),
    "a product of a product": of("mul", of("mul", x, Z), y),
    "two factors": of("mul", of("mul", Z, x), of("mul", W, y)),
    "a numerator": of("div", of("mul", Z, x), y),
    "a sign": of("neg", of("mul", Z, x)),
    "a choice with 0": chosen(ZERO, of("mul", N, y)),
    "the other choice with 0": chosen(of("neg", of("div", of("mul", N, y), Const(3.0, "fine"))), ZERO),
    "a common factor of both": chosen(of("mul", Z, y), of("mul", x, Z)),
    "counts of a choice of 0": of("mul", N, chosen(y, ZERO)),
    "a constant alone": Z,
}
STAYS = {
    "what may be infinite where 0 is chosen": chosen(ZERO, of("mul", Z, y)),
    "a factor of a choice of 0": of("mul", Z, chosen(y, ZERO)),
    "a product that may be": chosen(of("mul", N, of("mul", y, Z)), ZERO),
    "a denominator": of("div", x, of("mul", Z, of("exp", y))),
    "a summand of a denominator": of("div", x, of("add", Z, Const(9.0, "fine"))),
    "a summand": of("add", Z, x),
    "another factor in each branch": chosen(of("mul", Z, y), of("mul", W, y)),
    "a factor of one branch": chosen(of("mul", Z, y), y),
    "a condition": Map(scalar("select", scalar("lt", arg(0), arg(1)), arg(2), const(0.0)), (x, Z, y)),
}


@pytest.mark.parametrize("name", LEAVES)
def test_a_factor_leaves_the_sum(name):
    before = program(out=total(LEAVES[name]))
    after = hoist(before)
    (push,) = (n for n in after.nodes() if isinstance(n, Push))
    assert not pulls(push)
    assert run(after, **VALUES)["out"] == pytest.approx(run(before, **VALUES)["out"], rel=1e-14)


@pytest.mark.parametrize("name", STAYS)
def test_what_is_no_factor_stays(name):
    before = program(out=total(STAYS[name]))
    assert hoist(before).outputs == before.outputs


def test_a_condition_keeps_what_it_reads():
    """The factor leaves, and the bound that its tokens are compared with does not."""
    node = Map(scalar("select", scalar("lt", arg(0), arg(1)), scalar("mul", arg(2), arg(3)), const(0.0)), (x, Z, N, y))
    before = program(out=total(node))
    after = hoist(before)
    (push,) = (n for n in after.nodes() if isinstance(n, Push))
    assert pulls(push) == {z}
    np.testing.assert_allclose(run(after, **VALUES)["out"], run(before, **VALUES)["out"], rtol=1e-14)


def test_only_a_positive_factor_leaves_a_maximum():
    for factor, leaves in ((E, True), (Z, False), (of("mul", E, Z), False)):
        for node in (of("mul", factor, x), of("neg", of("mul", factor, x))):
            before = program(out=total(node, "max"))
            after = hoist(before)
            assert isinstance(after.outputs[Key("out")], Map) == leaves
            np.testing.assert_allclose(run(after, **VALUES)["out"], run(before, **VALUES)["out"], rtol=1e-14)


def test_an_element_without_tokens_has_the_sum_0_whatever_its_factor_is():
    """With several leaves, an element may have tokens of one alone: there 1/count is infinite."""
    share = Pull("fine", "coarse", Map(scalar("div", const(1.0), arg(0)), (w,)))
    alone = program(out=total(of("mul", share, x)))
    both = Program("p", ("fine", "other"), alone.outputs, {})
    count = {"count_fine_over_coarse": np.array([2.0, 0.0, 0.0])}
    for p, expected in ((alone, math.nan), (both, 0.0)):
        after = hoist(p)
        sizes = Sizes({("fine", "coarse"): np.array([0, 0])}, {"fine": 2, "coarse": 3})
        given = {"x": np.ones(2), "w": np.array([2.0, 0.0, 1.0]), **count}
        found = interpret(after, {i: given[i.word] for i in after.inputs}, sizes)[Key("out")]
        np.testing.assert_array_equal(found, [1.0, expected, 0.0])
    peak = Program("p", ("fine", "other"), {Key("out"): total(of("mul", E, x), "max")}, {})
    assert hoist(peak).outputs == peak.outputs  # a maximum over nothing is -inf


def test_maps_of_segment_values_are_taken_once_per_segment():
    every = Pull("fine", BATCH, Input("b", BATCH, "b"))
    made = hoist(program(out=of("exp", of("mul", Z, of("add", W, every)))))
    out = made.outputs[Key("out")]
    assert isinstance(out, Pull) and out.target == "coarse"
    assert all(not isinstance(n, Map) or n.stratum == "coarse" for n in made.nodes())
    kept = program(a=of("exp", every), b=of("mul", Z, x))  # a value of the batch alone would need a stage of its own
    assert hoist(kept).outputs == kept.outputs


def test_the_sum_of_a_batch_still_adds_up_the_sums_of_its_segments():
    node = of("mul", Z, x)
    before = program(a=total(node), b=Push("fine", BATCH, node))
    assert hoist(before).outputs == before.outputs


def test_a_value_of_all_tokens_is_lost_with_one_of_them():
    """Where their `nothing` is summed anyway; otherwise it is compared token by token."""
    nothing = of("sub", x, x)
    marked = Map(UNLESS, (Z, nothing))
    given = {**VALUES, "x": np.array([0.0, math.nan, 1.0, 1.0, math.inf, 1.0])}
    after = hoist(program(out=marked, lost=total(nothing)))
    np.testing.assert_array_equal(np.isnan(run(after, **given)["out"]), [True, True, False, True, True, True])
    assert isinstance(after.outputs[Key("out")], Pull)
    alone = hoist(program(out=marked))
    np.testing.assert_array_equal(np.isnan(run(alone, **given)["out"]), [False, True, False, False, True, False])


def test_a_choice_of_0_stays_where_a_factor_can_reach_its_branches():
    node = Map(scalar("select", scalar("lt", arg(0), const(0.0)), arg(1), const(0.0)), (Z, W))
    assert hoist(program(out=node)).outputs == program(out=node).outputs


@pytest.mark.parametrize("backend", ["torch", "c"])
@pytest.mark.parametrize("drift", [39.0, 59.0, 900.0])
def test_a_dropped_row_whose_weight_overflows_adds_nothing(backend, drift):
    """Its mask and its weight are both of the row; 0 times infinity is not 0."""
    op, n = operator(spec("mis"), backend), 16
    index = op.index(offsets=torch.tensor([0, n, 2 * n]))
    old = torch.full((2 * n,), -1.0)
    rollout = torch.cat([old[:n], old[n:] - drift])
    found = op.loss(old.clone().requires_grad_(), old, torch.ones(2), index, policies={"rollout": rollout})
    c = op.coefficients(old, old, torch.ones(2), index, policies={"rollout": rollout})
    assert math.isfinite(found.loss.detach()) and (c.values[n:] == 0).all() and (c.values[:n] != 0).all()


# ---------------------------------------------------------------- what it is for


@pytest.mark.parametrize("name", ["gspo", "fspo", "luspo", "gmpo"])
def test_ratios_of_rows_need_one_pass_that_reads_tokens(name):
    """All sums; then a coefficient per row is written. gmpo compares no sum, and its ratio depends on advantages."""
    plan = sweeps(programs(spec(name))["objective"], "trajectory")
    first, last = (p for s in plan.sweeps for p in s.passes)
    assert len(plan.sweeps) == 1 and len(first.pushes) == 3
    assert [k.word for k, _ in last.stores] == ["coefficients"]
    assert (first.wide, last.reads == ()) == (name != "gmpo",) * 2


@pytest.mark.parametrize("name", SPECS)
def test_sums_of_the_results_have_one_precision_in_all_programs(name):
    """So that coefficients have the same bits with metrics and without."""
    wide: dict[object, bool] = {}
    h = spec(name)
    for program_name in ("evaluate", "objective"):
        plan = sweeps(programs(h)[program_name], h.rows.name)
        for sweep in plan.sweeps:
            for step in sweep.steps:
                for push in step.pushes if isinstance(step, Pass) else ():
                    if push.reduce == "sum" and program_name == "objective":
                        assert wide.get(push, step.wide) == step.wide, plan.names[push]
                    wide[push] = step.wide


def test_no_sum_over_a_row_has_a_factor_of_the_row():
    """Nothing is left to hoist in shipped losses."""
    for name in SPECS:
        for p in programs(spec(name)).values():
            assert optimise(hoist(p)).outputs == p.outputs, name


def test_only_a_mark_that_is_0_or_nan_is_subtracted():
    """A zero keeps its sign: a micro-batch may choose where its step subtracts, and has the same bits."""
    mark = Map(scalar("add", *(scalar("sub", arg(i), arg(i)) for i in (0, 1))), (x, y))
    assert subtracted(Map(UNLESS, (x, mark))).body is scalar("sub", arg(0), scalar("mul", arg(1), arg(1)))
    assert {math.copysign(1.0, -0.0 - nothing * nothing) for nothing in (0.0, -0.0)} == {-1.0}
    for other in (Map(UNLESS, (x, y)), of("mul", x, mark)):
        assert subtracted(other) is other
