"""Derivatives of operators, and the adjoint of a program."""

from dataclasses import replace

import numpy as np
import pytest
from hierarchies.levels import two_levels
from oracles.interpreter import Interpreter, interpreted
from oracles.programs import PARENT, derived, program, run, x, y, z
from support import spread_batch, token, trajectory

from fibration import (
    Attribute,
    Fibration,
    Gate,
    count,
    identity_gate,
    log_ratio,
    proportional,
    residual,
    total,
    uniform,
    zero_gate,
)
from fibration.compiler.adjoint import adjoint
from fibration.compiler.interpret import Sizes
from fibration.compiler.ir import Const, Detach, Input, Key, Map, Pull, Push, Scan, arg, scalar
from fibration.compiler.lower import lower
from fibration.compiler.program import Program
from fibration.errors import IRError
from fibration.language.operators import PRIMITIVES

weight = Attribute("weight", on=token)
DIFFERENTIABLE = [(op, row.arity) for op, row in PRIMITIVES.items() if not row.is_condition and op != "stop"]


@pytest.mark.sampled
@pytest.mark.parametrize(("op", "arity"), DIFFERENTIABLE)
@pytest.mark.parametrize("point", [(0.7, 1.3), (1.9, 0.4)])
def test_derivatives_of_scalar_operators_equal_finite_differences(op, arity, point):
    body = (
        scalar("select", scalar("lt", arg(0), arg(1)), scalar("mul", arg(0), arg(1)), scalar("exp", arg(0)))
        if op == "select"
        else scalar(op, *(arg(i) for i in range(arity)))
    )
    body = scalar("mul", body, scalar("add", body, scalar("mul", arg(0), arg(1))))  # shared, and inside a product
    p = program(out=Map(body, (x, y)))
    a, b = (np.full(6, v) for v in point)
    seed = Input("seed", "fine", "seed")
    for wrt, direction in (("x", (1, 0)), ("y", (0, 1))):
        h = 1e-6
        up = run(p, x=a + h * direction[0], y=b + h * direction[1])["out"]
        down = run(p, x=a - h * direction[0], y=b - h * direction[1])["out"]
        back = run(derived(p, "out", wrt, seed), x=a, y=b, seed=2.5)["g"]
        assert back == pytest.approx(2.5 * (up - down) / (2 * h), rel=1e-8)


def test_push_is_the_transpose_of_pull():
    generator = np.random.default_rng(0)
    u, v = generator.normal(size=6), generator.normal(size=3)
    p = program(push=Push("fine", "coarse", x), pull=Pull("fine", "coarse", z))
    out = run(p, x=u, z=v)
    assert out["push"] @ v == pytest.approx(u @ out["pull"], rel=1e-14)
    seed = Input("v", "coarse", "v")
    assert (
        run(derived(program(out=Push("fine", "coarse", x)), "out", "x", seed), x=u, v=v)["g"].tolist()
        == v[PARENT].tolist()
    )
    seed = Input("u", "fine", "u")
    back = run(derived(program(out=Pull("fine", "coarse", z)), "out", "z", seed), z=v, u=u)["g"]
    assert back == pytest.approx(np.bincount(PARENT, u), rel=1e-14)


def test_derivatives_add_up_over_all_uses_of_a_value():
    """Also where the same comes back along two of them."""
    once, again = (Map(scalar("add", arg(0), arg(1)), (x, other)) for other in (y, Const(1.0, "fine")))
    p = program(out=Map(scalar("add", arg(0), scalar("add", arg(1), arg(2))), (once, again, x)))
    assert run(derived(p, "out", "x"), x=np.ones(6), y=np.ones(6))["g"].tolist() == [3] * 6


def test_detach_stops_the_derivative():
    product = Map(scalar("mul", arg(0), arg(1)), (x, Detach(Map(scalar("exp", arg(0)), (x,)))))
    u = np.linspace(-1, 1, 6)
    g = run(derived(program(out=product), "out", "x"), x=u)["g"]
    assert g == pytest.approx(np.exp(u), rel=1e-15)


def test_an_output_without_the_input_has_derivative_zero():
    p = program(out=Map(scalar("exp", arg(0)), (y,)), other=x)
    assert run(derived(p, "out", "x"), x=np.ones(6), y=np.ones(6))["g"].tolist() == [0] * 6
    missing = Input("missing", "coarse", "test")
    nowhere = adjoint(p, {Key("out"): Const(1.0, "fine")}, {Key("g"): (missing,)})
    assert nowhere.outputs[Key("g")] == Const(0.0, "coarse")


@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize("leaf", ["fine", "beside"])
def test_a_forward_scan_is_the_transpose_of_the_backward_scan(leaf, forward):
    """Of two leaves that are in one order, towards each of them."""
    generator, w = np.random.default_rng(0), Input("w", "beside", "w")
    parents = {("fine", "coarse"): PARENT, ("beside", "coarse"): np.array([2, 0, 2])}
    places = {"fine": np.array([3, 0, 4, 5, 1, 8]), "beside": np.array([2, 7, 6])}
    sizes = Sizes(parents, {"fine": 6, "beside": 3, "coarse": 3, "batch": 1}, places)
    given = {"x": generator.normal(size=6), "w": generator.normal(size=3)}
    p = Program("p", ("fine", "beside"), {Key("out"): Scan(leaf, "coarse", (x, w), Const(0.7, "batch"), forward)}, {})
    seed = Input("seed", leaf, "seed")
    v = generator.normal(size=sizes.size[leaf])
    out = interpreted(p, given, sizes)["out"]
    back = {name: interpreted(derived(p, "out", name, seed), {**given, "seed": v}, sizes)["g"] for name in given}
    assert abs(out @ v) > 0.1
    assert sum(given[name] @ g for name, g in back.items()) == pytest.approx(out @ v, rel=1e-14)


def test_a_maximum_is_not_differentiated():
    with pytest.raises(IRError, match="reduction 'max' has no derivative"):
        derived(program(out=Push("fine", "coarse", x, "max")), "out", "x")


def test_a_value_used_many_times_collects_every_cotangent():
    pushed = Pull("fine", "coarse", Push("fine", "coarse", x))
    out = Map(scalar("add", scalar("mul", arg(0), arg(1)), scalar("mul", arg(0), arg(0))), (x, pushed))
    p = program(out=Push("fine", "coarse", out))
    u = np.random.default_rng(1).normal(size=6)
    h = 1e-6
    for i in range(6):
        step = np.eye(6)[i] * h
        difference = (run(p, x=u + step)["out"].sum() - run(p, x=u - step)["out"].sum()) / (2 * h)
        assert run(derived(p, "out", "x"), x=u)["g"][i] == pytest.approx(difference, rel=1e-7)


LINEAR = {
    "identity": lambda: {trajectory: identity_gate(), token: identity_gate()},
    "zero": lambda: {trajectory: identity_gate(), token: zero_gate()},
    "scaled": lambda: {trajectory: Gate(residual * 3), token: Gate(residual / 2).per(count(token, over=trajectory))},
}


@pytest.mark.sampled
@pytest.mark.parametrize("kernel", [uniform(), proportional(total(weight))], ids=repr)
@pytest.mark.parametrize("gates", LINEAR)
def test_the_adjoint_is_the_transpose_where_gates_are_linear(gates, kernel):
    """<G x, y> = <x, G* y> for the map from densities to gated densities."""
    h = two_levels(
        identity_gate(),
        identity_gate(),
        log_ratio(),
        gates=LINEAR[gates](),
        fibrations=[Fibration(token, trajectory, kernel)],
    )
    batch = spread_batch()
    generator = np.random.default_rng(3)
    u, v = generator.normal(size=(2, batch.tokens))
    oracle = Interpreter.of(h, batch)
    base = lower(h)
    down = next(n for n, name in base.names.items() if name == Key("down", "token"))
    linear = replace(base, outputs={Key("down"): down})
    seed = Input("cotangent", "token", "cotangent")
    transposed = derived(linear, "down", "log_ratio", seed, "back")
    oracle.programs = {"linear": linear, "transposed": transposed}
    forward = oracle.run("linear", u)["down"]
    back = oracle.run("transposed", np.zeros(batch.tokens), cotangent=v)["back"]
    assert forward @ v == pytest.approx(u @ back, rel=1e-12)
    if gates == "identity":
        assert Interpreter.of(h, batch).ratio(u) == pytest.approx(np.exp(u), rel=1e-12)
