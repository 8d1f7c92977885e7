"""Optimising: fewer nodes, and every output as it was."""

import math

import numpy as np
import pytest
from hierarchies.levels import one_level, two_levels
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.interpreter import Interpreter
from oracles.programs import program, run, x, y
from support import Batch, cases, raw_programs
from thorough import examples

from fibration import Gate, exp, identity_gate, log, residual, sqrt, where
from fibration.compiler.interpret import MEANING
from fibration.compiler.ir import Const, Key, Map, Push, Scan, arg, const, count_input, scalar
from fibration.compiler.optimise import optimise
from fibration.compiler.program import Program
from fibration.compiler.rules import simplify


@examples(25)
@given(case=cases())
def test_optimising_keeps_every_output(case):
    hierarchy, batch = case
    oracle = Interpreter.of(hierarchy, batch)
    seed = np.cos(np.arange(batch.tokens))
    for name, p in raw_programs(hierarchy).items():
        more = {"cotangent": seed} if name == "gate_adjoint" else {}
        before = oracle.run(name, **more)
        oracle.programs = {**oracle.programs, f"fast {name}": optimise(p)}
        after = oracle.run(f"fast {name}", **more)
        assert before.keys() == after.keys()
        scale = max(1.0, *(np.abs(v[np.isfinite(v)]).max(initial=0) for v in before.values()))
        for key, b in before.items():
            assert after[key] == pytest.approx(b, rel=1e-12, abs=1e-14 * scale, nan_ok=True), (name, key)


bodies = st.recursive(
    st.one_of(st.sampled_from([arg(0), arg(1)]), st.sampled_from([0.0, 1.0, -1.0, 2.0, 0.5, 3.0]).map(const)),
    lambda inner: st.one_of(
        st.builds(scalar, st.sampled_from(["add", "sub", "mul", "div"]), inner, inner),
        st.builds(scalar, st.sampled_from(["neg", "exp", "log", "tanh", "sqrt", "sigmoid", "softplus", "atan"]), inner),
        st.builds(
            lambda op, a, b, c, d: scalar("select", scalar(op, a, b), c, d), st.sampled_from(["lt", "le"]), inner, inner, inner, inner
        ),
        st.builds(
            lambda op, a, b, c: scalar("select", scalar("not", scalar(op, scalar("lt", a, b), scalar("le", b, c))), a, c),
            st.sampled_from(["and", "or"]), inner, inner, inner,
        ),
    ),
    max_leaves=20,
)  # fmt: skip
HARD = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 1e-300, 1e300, -1e300, 700.0]


@settings(max_examples=500)
@given(
    bodies,
    st.lists(st.sampled_from(HARD), min_size=6, max_size=6),
    st.lists(st.sampled_from(HARD), min_size=6, max_size=6),
)
def test_simplifying_a_body_keeps_its_values(body, u, v):
    """Where the plain body has a value, through every intermediate; a dead branch may overflow."""
    before = run(program(out=Map(body, (x, y))), x=u, y=v)["out"]
    after = run(optimise(program(out=Map(body, (x, y)))), x=u, y=v)["out"]
    clean = np.isfinite(_everything(body, u, v))
    before, after = before[clean], after[clean]
    assert (np.abs(after - before) <= 4e-15 * np.abs(before) + 1e-300).all()


def _everything(body, u, v):
    """The sum of the sizes of all values that reach the result: not finite where one of them is not."""
    with np.errstate(all="ignore"):

        def of(s):
            if s.op == "arg":
                return np.asarray((u, v)[s.value], float), 0.0
            if s.op == "const":
                return np.full(6, float(s.value)), 0.0
            if s.op == "select":
                (c, n0), (a, n1), (b, n2) = map(of, s.args)
                return np.where(c, a, b), n0 + np.where(c, n1, n2)
            args = [of(a) for a in s.args]
            value = MEANING[s.op](*(a for a, _ in args))
            return value, sum((n for _, n in args), np.abs(value.astype(float)))

        value, noise = of(body)
        return np.asarray(noise, float) + np.abs(value)


@pytest.mark.parametrize(
    ("body", "simple"),
    [
        (scalar("mul", arg(0), const(1)), arg(0)),
        (scalar("mul", const(1), arg(0)), arg(0)),
        (scalar("add", arg(0), const(0)), arg(0)),
        (scalar("add", const(0), arg(0)), arg(0)),
        (scalar("sub", arg(0), const(0)), arg(0)),
        (scalar("sub", const(0), arg(0)), scalar("neg", arg(0))),
        (scalar("div", arg(0), const(1)), arg(0)),
        (scalar("mul", const(-1), arg(0)), scalar("neg", arg(0))),
        (scalar("neg", scalar("neg", arg(0))), arg(0)),
        (scalar("mul", scalar("neg", arg(0)), scalar("neg", arg(1))), scalar("mul", arg(0), arg(1))),
        (scalar("neg", scalar("sub", arg(0), arg(1))), scalar("sub", arg(1), arg(0))),
        (scalar("add", arg(0), scalar("neg", arg(1))), scalar("sub", arg(0), arg(1))),
        (scalar("sub", arg(0), scalar("neg", arg(1))), scalar("add", arg(0), arg(1))),
        (scalar("add", const(2), const(3)), const(5)),
        (scalar("mul", arg(0), const(0)), const(0)),
        (scalar("mul", scalar("div", arg(0), arg(1)), arg(1)), arg(0)),
        (scalar("select", scalar("lt", const(1), const(2)), arg(0), arg(1)), arg(0)),
        (scalar("select", scalar("lt", const(2), const(1)), arg(0), arg(1)), arg(1)),
        (scalar("select", scalar("le", arg(0), arg(0)), arg(0), arg(1)), arg(0)),
        (scalar("select", scalar("lt", arg(0), arg(0)), arg(0), arg(1)), arg(1)),
        (scalar("select", scalar("lt", arg(0), arg(1)), arg(0), arg(0)), arg(0)),
        (scalar("select", scalar("and", scalar("lt", const(1), const(2)), scalar("le", const(2), const(2))), arg(0), arg(1)), arg(0)),
        (scalar("select", scalar("or", scalar("lt", const(2), const(1)), scalar("lt", const(3), const(2))), arg(0), arg(1)), arg(1)),
        (scalar("select", scalar("not", scalar("lt", const(2), const(1))), arg(0), arg(1)), arg(0)),
        (scalar("select", scalar("lt", scalar("log", const(0)), const(1)), arg(0), arg(1)), arg(0)),
        (scalar("select", scalar("le", scalar("div", const(0), const(0)), const(1)), arg(0), arg(1)), arg(1)),
    ],
    ids=str,
)  # fmt: skip
def test_neutral_elements_and_decided_conditions_vanish(body, simple):
    assert simplify(body) is simple


@pytest.mark.parametrize(
    "body",
    [
        scalar("div", arg(0), const(0)),
        scalar("sub", arg(0), arg(0)),
        scalar("div", arg(0), arg(0)),
        scalar("select", scalar("lt", const(0), arg(0)), scalar("log", arg(0)), const(0)),
        scalar("log", const(0)),
    ],
    ids=str,
)
def test_a_rewrite_that_could_change_a_value_is_not_done(body):
    assert simplify(body) is body


def test_infinities_in_an_untaken_branch_change_nothing():
    """exp(1000) overflows in the branch that is dead, in the value and in the derivative."""
    h = two_levels(
        identity_gate(),
        Gate(where(residual > 0, where(residual > 1, 1, residual), exp(1000 * -residual) * 0 + log(1 - residual))),
    )
    batch = Batch((2, 2), np.array([900.0, -900.0, 0.25, 0.5]), np.ones(4))
    for x_ in (batch.x, np.array([0.25, 1.5, 40.0, -1e-3])):
        oracle = Interpreter.of(h, batch.with_x(x_))
        found = oracle.run("levels")["gated_token"]
        assert np.isfinite(found).all()
        assert np.isfinite(oracle.coefficients()[2:]).all()
    safe = one_level(Gate(where(residual <= 0, residual, sqrt(residual))))
    c = Interpreter.of(safe, Batch((3,), np.array([-4.0, 0.0, 4.0]), np.ones(3))).coefficients()
    assert c == pytest.approx(np.array([math.exp(-4), 1, math.exp(2) / 4]) / 3, rel=1e-14)


def test_a_constant_that_is_not_finite_survives_optimisation():
    p = optimise(program(out=Map(scalar("div", arg(0), arg(1)), (Const(1.0, "fine"), Const(0.0, "fine")))))
    assert run(p)["out"].tolist() == [math.inf] * 6


def test_sums_of_constants_become_counts():
    p = optimise(
        program(out=Push("fine", "coarse", Const(2.0, "fine")), zero=Push("fine", "coarse", Const(0.0, "fine")))
    )
    sized = count_input("fine", "coarse")
    assert p.outputs[Key("out")] is Map(scalar("mul", const(2), arg(0)), (sized,))
    assert p.outputs[Key("zero")] is Const(0.0, "coarse")


def test_fusing_leaves_named_and_shared_values_alone():
    shared = Map(scalar("exp", arg(0)), (x,))
    once = Map(scalar("log", arg(0)), (y,))
    out = Map(scalar("mul", scalar("add", arg(0), arg(1)), arg(0)), (shared, once))
    other = Map(scalar("log", arg(0)), (shared,))
    p = optimise(program(out=out, other=other))
    assert shared in set(p.nodes())
    assert once not in set(p.nodes())
    named = optimise(Program("p", ("fine",), {Key("out"): out}, {once: Key("kept")}))
    assert once in set(named.nodes())


def test_even_functions_of_a_value_and_of_its_opposite_are_one():
    square, opposite = scalar("mul", arg(0), arg(0)), Map(scalar("neg", arg(0)), (x,))
    p = optimise(program(one=Map(square, (x,)), other=Map(square, (opposite,)), odd=Map(scalar("exp", arg(0)), (opposite,))))
    assert p.outputs[Key("one")] is p.outputs[Key("other")]
    assert opposite not in p.outputs[Key("one")].inputs and set(p.outputs[Key("odd")].inputs) <= {x, opposite}


def test_ordered_sums_of_0_or_with_discount_0_are_0():
    nothing = Const(0.0, "fine")
    for values, discount in (((nothing,), 0.5), ((x,), 0.0)):
        scan = Scan("fine", "coarse", values, Const(discount, "batch"))
        assert optimise(program(out=scan)).outputs[Key("out")] is nothing
