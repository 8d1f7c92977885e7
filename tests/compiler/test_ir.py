"""The IR: its invariants, and its meaning by hand."""

import math

import numpy as np
import pytest
from hierarchies.levels import one_level
from oracles.programs import program, run, x, z
from support import SPECS, raw_programs, spec

from fibration import Gate, residual, where
from fibration.compiler.interpret import MEANING, compute, quantiles
from fibration.compiler.ir import (
    SCALAR_ARITY,
    Const,
    Detach,
    Input,
    Key,
    Map,
    Pull,
    Push,
    Quantile,
    Scan,
    arg,
    const,
    scalar,
)
from fibration.compiler.lower import lower
from fibration.compiler.program import Program
from fibration.errors import IRError
from fibration.language.expressions import apply
from fibration.language.operators import OPERATORS, Sugar


def test_nodes_and_scalars_are_interned():
    assert scalar("add", arg(0), const(1)) is scalar("add", arg(0), const(1.0))
    assert Push("fine", "coarse", x) is Push("fine", "coarse", x, "sum")
    assert Push("fine", "coarse", x) is not Push("fine", "coarse", x, "max")
    assert Map(arg(0), (x,)) is Map(inputs=(x,), body=arg(0))
    assert const(1) is not arg(1)
    assert Input("x", "fine", "x") is x
    assert Input("x", "fine", "y") is not x


@pytest.mark.parametrize(
    ("node", "problem"),
    [
        (Push("coarse", "fine", x), "a push from coarse of a vector over fine"),
        (Push("fine", "coarse", x, "mean"), "reduction 'mean'"),
        (Pull("fine", "coarse", x), "a pull from coarse of a vector over fine"),
        (Map(scalar("add", arg(0), arg(1)), (x, z)), "a map over several strata: coarse, fine"),
        (Map(scalar("add", arg(0), arg(1)), (x,)), "the unbound argument \\$1"),
        (Map(scalar("add", arg(0), arg(-1)), (x,)), "the unbound argument"),
        (Map(scalar("add", arg(0)), (x,)), "'add' with 1 arguments"),
        (Map(scalar("sin", arg(0)), (x,)), "'sin' with 1 arguments"),
        (Map(scalar("lt", arg(0), arg(0)), (x,)), "'lt' where a number belongs"),
        (Map(scalar("select", arg(0), arg(0), arg(0)), (x,)), "'arg' where a condition belongs"),
        (Map(scalar("not", scalar("add", arg(0), arg(0))), (x,)), "'not' where a number belongs"),
        (Map(scalar("select", scalar("and", arg(0), arg(0)), arg(0), arg(0)), (x,)), "'arg' where a condition belongs"),
        (Map(scalar("add", scalar("lt", arg(0), arg(0)), arg(0)), (x,)), "'lt' where a number belongs"),
        (Map(arg(0), ()), "a map over several strata"),
        (Quantile("coarse", (x,), Const(0.5, "fine")), "a quantile over coarse at a level over fine"),
        (Quantile("coarse", (x, x), Const(0.5, "coarse")), "a quantile of 2 vectors over fine, fine"),
        (Scan("fine", "coarse", (x,), Const(0.5, "coarse")), "a scan with a discount over coarse"),
        (Scan("fine", "coarse", (z,), Const(0.5, "batch")), "a scan into fine of 1 vectors over coarse"),
        (Scan("fine", "coarse", (x, x), Const(0.5, "batch")), "a scan into fine of 2 vectors over fine, fine"),
    ],
)
def test_broken_programs_are_refused(node, problem):
    with pytest.raises(IRError, match=problem):
        program(out=node).validate()
    used = Map(scalar("neg", arg(0)), (node,)) if node.operands else node
    with pytest.raises(IRError):
        program(out=used).validate()


@pytest.mark.parametrize("name", ["1st", "a b", "", "a-b"])
def test_names_are_identifiers(name):
    with pytest.raises(IRError, match="no identifier"):
        program(**{name: x}).validate()
    with pytest.raises(IRError, match="no identifier"):
        Program("p", ("fine",), {Key("out"): x}, {x: Key(name)}).validate()
    with pytest.raises(IRError, match="no identifier"):
        program(out=Input(name, "fine", "x")).validate()


def test_two_inputs_of_one_word_have_two_names():
    other = Input("x", "fine", "other")
    both = program(out=Map(scalar("sub", arg(0), arg(1)), (x, other))).validate()
    assert both.given == {x: "x", other: "x_2"}
    assert run(both, x=5, x_2=3)["out"].tolist() == [2] * 6
    p = Program("p", ("fine",), {Key("gated", "ratio"): x, Key("gated_ratio"): other}, {}).validate()
    assert list(p.called.values()) == ["gated_ratio", "gated_ratio_2"]
    given = Input("x", "fine", "parameter", ("x", ""))
    assert program(out=given, other=x).given == {given: "x_2", x: "x"}, "a parameter yields"


def test_nodes_come_before_their_users_and_once():
    shared = Map(scalar("exp", arg(0)), (x,))
    p = program(a=Push("fine", "coarse", shared), b=Map(scalar("mul", arg(0), arg(0)), (shared,)))
    order = list(p.nodes())
    assert len(order) == len(set(order)) == 4
    assert all(order.index(o) < order.index(n) for n in order for o in n.operands)
    assert p.edges == (("fine", "coarse"),)
    assert p.inputs == (x,)


def test_every_operator_of_the_language_has_a_meaning_in_the_ir():
    primitive = {n for n, row in OPERATORS.items() if not isinstance(row, Sugar)}
    assert MEANING.keys() == SCALAR_ARITY.keys() - {"arg", "const"}
    for name in primitive - {"where", "**"}:
        row = OPERATORS[name]
        arguments = [residual] * row.arity
        if row.conditions:
            arguments = [residual < 1] * row.arity
        formula = apply(name, *arguments)
        gate = Gate(where(formula, 1, 0) if row.is_condition else formula)
        lower(one_level(gate))


@pytest.mark.parametrize("name", SPECS)
def test_programs_print(name):
    for p in raw_programs(spec(name)).values():
        text = str(p)
        assert text.startswith(f"program {name} (leaf token)")
        assert text.count("\n") == len(list(p.nodes())) + len(p.outputs)


def test_the_interpreter_equals_results_written_by_hand():
    values = np.array([1.0, -2.0, 3.0, 4.0, 5.0, -6.0])
    coarse = np.array([10.0, 20.0, 30.0])
    p = program(
        total=Push("fine", "coarse", x), peak=Push("fine", "coarse", x, "max"), spread=Pull("fine", "coarse", z),
        both=Map(scalar("sub", scalar("mul", arg(0), arg(1)), const(1)), (x, Pull("fine", "coarse", z))), same=Detach(x),
        constant=Const(2.5, "coarse"),
    )  # fmt: skip
    out = run(p, x=values, z=coarse)
    assert out["total"].tolist() == [-1, 3, 3]
    assert out["peak"].tolist() == [1, 3, 5]
    assert out["spread"].tolist() == [10, 10, 20, 30, 30, 30]
    assert out["both"].tolist() == [9, -21, 59, 119, 149, -181]
    assert out["same"].tolist() == values.tolist()
    assert out["constant"].tolist() == [2.5, 2.5, 2.5]
    with pytest.raises(IRError, match="no value for the input 'z'"):
        run(p, x=values)


@pytest.mark.parametrize("level", [0.0, 0.1, 0.25, 0.5, 0.9, 1.0])
def test_quantiles_equal_numpy(level):
    """Bit for bit, of 1, 2 and more values, with ties and every order of magnitude; NaN where one is NaN."""
    generator = np.random.default_rng(0)
    for n in (1, 2, 3, 7, 100):
        for values in (
            generator.normal(size=n), generator.integers(3, size=n) / 7, np.full(n, -0.3), 2.0 ** generator.integers(-1074, 900, n)
        ):  # fmt: skip
            found = quantiles(values, np.ones(n, int), np.full(3, level))
            assert found.tolist() == [0, np.quantile(values, level), 0]
            values[n // 2] = math.nan
            assert math.isnan(quantiles(values, np.zeros(n, int), np.array([level]))[0])


def test_quantiles_with_infinities_equal_numpy():
    def found(level, *values):
        with np.errstate(all="ignore"):
            return quantiles(np.array(values), np.zeros(len(values), int), np.array([level]))[0]

    assert (
        found(0.5, -math.inf, -math.inf, 1.0) == found(0.25, -math.inf, 1.0) == found(0.75, -math.inf, 1.0) == -math.inf
    )
    assert found(0.25, 1.0, math.inf) == found(0.75, 1.0, math.inf) == found(0.5, 0.0, math.inf, math.inf) == math.inf
    assert found(0.5, -math.inf, 2.0, math.inf) == 2
    assert math.isnan(found(0.5, -math.inf, math.inf))
    assert found(0.5, -1.5e308, 1.5e308) == 0  # their difference is no number of float64
    assert math.copysign(1, found(0.5, -0.0, -0.0)) == 1


@pytest.mark.parametrize(
    ("op", "arguments", "expected"),
    [
        ("add", (2, 3), 5), ("sub", (2, 3), -1), ("mul", (2, 3), 6), ("div", (3, 2), 1.5), ("neg", (2,), -2),
        ("exp", (1,), math.e), ("log", (2,), math.log(2)), ("expm1", (1e-9,), math.expm1(1e-9)),
        ("log1p", (1e-9,), math.log1p(1e-9)), ("tanh", (0.3,), math.tanh(0.3)), ("sqrt", (2,), math.sqrt(2)),
        ("sigmoid", (0.7,), 1 / (1 + math.exp(-0.7))), ("sigmoid", (-0.7,), 1 / (1 + math.exp(0.7))),
        ("softplus", (1000,), 1000), ("softplus", (-800,), 0), ("softplus", (0,), math.log(2)), ("atan", (1,), math.pi / 4),
        ("atan", (-math.inf,), -math.pi / 2), ("softplus", (-30,), math.exp(-30)), ("sigmoid", (1000,), 1), ("sigmoid", (-1000,), 0), ("lt", (1, 2), 1), ("lt", (2, 2), 0), ("le", (2, 2), 1),
        ("le", (3, 2), 0), ("select", (1, 5, 6), 5), ("select", (0, 5, 6), 6), ("and", (1, 0), 0), ("or", (1, 0), 1),
        ("not", (1,), 0), ("exp", (1e4,), math.inf), ("div", (1, 0), math.inf),
    ],
)  # fmt: skip
def test_scalar_operators_have_their_values(op, arguments, expected):
    assert compute(op, *arguments) == pytest.approx(expected, rel=1e-15)
