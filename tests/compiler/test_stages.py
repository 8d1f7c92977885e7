"""The compiler's stages, one by one: the IR's invariants, cancelling, lowering, the adjoint, optimising, scheduling."""

import ast
import dataclasses
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from support import (
    SPECS,
    Batch,
    Oracle,
    Stratum,
    batches,
    cases,
    coefficients,
    exact,
    interpreted,
    operator,
    packed,
    prompt_group,
    random_hierarchy,
    raw_programs,
    spec,
    spread_batch,
    token,
    trajectory,
)

from fibration import (
    Attribute,
    Fibration,
    Gate,
    Hierarchy,
    Parameter,
    aggregate_gate,
    clip_gate,
    count,
    dual_clip_gate,
    exp,
    identity_gate,
    log,
    log_clip_gate,
    log_ratio,
    minimum,
    proportional,
    residual,
    signed_log_ratio,
    sqrt,
    token_mean,
    total,
    trajectory_mean,
    uniform,
    where,
    zero_gate,
)
from fibration import pipeline as compiling
from fibration.compiler.adjoint import adjoint
from fibration.compiler.interpret import Sizes
from fibration.compiler.ir import (
    SCALAR_ARITY,
    Const,
    Detach,
    Input,
    Map,
    Program,
    Pull,
    Push,
    Scalar,
    arg,
    const,
    count_input,
    scalar,
)
from fibration.compiler.keys import Key
from fibration.compiler.lower import lower
from fibration.compiler.optimise import optimise
from fibration.compiler.rules import simplify
from fibration.compiler.scalars import MEANING, compute
from fibration.compiler.schedule import schedule
from fibration.errors import IRError
from fibration.language.cancel import cancel, factors_over
from fibration.language.exact import NoValue
from fibration.language.expressions import apply, as_expression
from fibration.language.operators import OPERATORS, PRIMITIVES, Sugar
from fibration.language.traversal import evaluate

x = Input("x", "fine", "x")
y = Input("y", "fine", "y")
z = Input("z", "coarse", "z")
PARENT = np.array([0, 0, 1, 2, 2, 2])
SIZES = Sizes({("fine", "coarse"): PARENT}, {"fine": 6, "coarse": 3})


def program(**outputs):
    return Program("p", ("fine",), {Key(word): node for word, node in outputs.items()}, {})


def derived(p: Program, output: str, wrt: str, seed: Input | None = None, result: str = "g") -> Program:
    """The adjoint of one output towards the input of this name."""
    towards = next(i for i in p.inputs if i.word == wrt)
    return adjoint(p, {Key(output): seed or Const(1.0, p.outputs[Key(output)].stratum)}, {Key(result): (towards,)})


def run(p, **inputs):
    return interpreted(p, inputs, SIZES)


# ---------------------------------------------------------------- invariants


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


# ---------------------------------------------------------------- the interpreter, by hand


def test_the_interpreter_by_hand():
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
def test_scalar_operators(op, arguments, expected):
    assert compute(op, *arguments) == pytest.approx(expected, rel=1e-15)


# ---------------------------------------------------------------- cancelling

M, T = count(trajectory), count(token)
C, k, eps = (Parameter(n, default=0.5) for n in ("C", "k", "eps"))
weight = Attribute("weight", on=token)


@pytest.mark.parametrize(
    ("expression", "intended"),
    [
        ((M * residual) / M, residual),
        (M * (residual / M), residual),
        (residual / M * M, residual),
        ((M * residual) / (M * T), residual / T),
        ((residual / T) / (M / T), residual / M),
        (M / M, as_expression(1)),
        (M * M / M, M),
        (2 * residual / 2, residual),
        (residual * 0, as_expression(0)),
        (0 * residual + C, C),
        (C + 0 * residual, C),
        (0 * residual - C, -C),
        (M * residual - M * C, (residual - C) * M),
        (M * C - M * residual, (C - residual) * M),
        (M * residual + M * C, (residual + C) * M),
        ((M * residual - M * C) / M, residual - C),
        (M * minimum(residual / M, C), M * minimum(residual / M, C)),
        (-(-residual), residual),
        (M * residual - C / M, M * residual - C / M),
        (C - k * (abs(residual) - C), C - k * (abs(residual) - C)),
        ((1 + 1 / k) * C, (1 + 1 / k) * C),
        (exp(M * residual / M), exp(residual)),
        (where(M * residual / M > C, residual, 0), where(residual > C, residual, 0)),
        (M * where(residual > C, residual / M, 0), where(residual > C, residual, 0)),
        (where(residual > C, M * residual, 0) / M, where(residual > C, residual, 0)),
        (residual, residual),
        (residual / 3, residual / 3),
        (2 * residual / 3, 2 * residual / 3),
    ],
    ids=str,
)  # fmt: skip
def test_cancel_gives_the_intended_form(expression, intended):
    assert cancel(expression) == intended


def test_the_rollback_keeps_its_distance_from_the_budget():
    gate = aggregate_gate(C, rollback=k).per(M).expression
    assert "C - k*(" in str(cancel(gate))
    fiberpo = spec("fiberpo")
    body = next(n for n, name in lower(fiberpo).names.items() if name == Key("gated", "trajectory", "+")).body
    assert "sub(" in str(body)
    assert str(body).count("mul") == str(cancel(fiberpo.gate(trajectory))).count("*")


def test_shipped_gates_lose_their_sizes():
    """theory: in intensive variables every gate of the paper is a plain scalar gate."""
    h = spec("fiberpo_domain")
    assert {s.name: str(m) for s, m in h.masses.items()} == {
        "domain": "count(trajectory, over=domain)",
        "prompt_group": "count(trajectory, over=prompt_group)",
        "trajectory": "1",
        "token": "1/count(token, over=trajectory)",
    }
    for name in ("fiberpo", "fiberpo_domain"):
        p = raw_programs(spec(name))["levels"]
        for s in spec(name).order[1:-1]:
            for channel in "+-":
                node = p.outputs[Key("gated", s.name, channel)]
                counts = [o for o in node.operands if isinstance(o, Input) and o.kind == "count"]
                assert "trajectory" not in {of for of, _ in (o.key for o in counts)}
        leaf = p.outputs[Key("gated", "token", "+")]
        assert not [o for o in leaf.operands if isinstance(o, Input) and o.kind == "count"]


SYMBOLS = [residual, C, k, M, T]
small = st.one_of(
    st.sampled_from(SYMBOLS), st.integers(-3, 3).map(as_expression), st.just(as_expression(Fraction(2, 5)))
)
formulas = st.recursive(
    small,
    lambda inner: st.one_of(
        st.builds(
            lambda op, a, b: {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[op], st.sampled_from("+-*/"), inner, inner
        ),
        st.builds(lambda a: -a, inner),
        st.builds(lambda a, b: where(a <= b, a * b, b - a), inner, inner),
        st.builds(lambda a, b: where((a < b) | ~(a > 1), a, a / 3), inner, inner),
        st.builds(abs, inner),
        st.builds(lambda a: a**2, inner),
    ),
    max_leaves=14,
)
POINTS = [
    dict(zip(SYMBOLS, map(Fraction, row), strict=True))
    for row in (("1/3", "1/2", 3, 4, 9), (-2, "1/7", 5, 2, 3), (0, 1, 1, 1, 1), ("-1/2", "1/2", 2, 3, 5))
]


@settings(max_examples=400)
@given(formulas)
def test_cancelling_keeps_every_value(e):
    reduced = cancel(e)
    checked = 0
    for point in POINTS:
        try:
            before = evaluate(e, point)
        except NoValue:
            continue
        assert evaluate(reduced, point) == before
        checked += 1
    assume(checked)


@settings(max_examples=200)
@example(residual * apply("+", 0, 0.4))
@given(formulas)
def test_cancelling_twice_changes_nothing_more(e):
    once = cancel(e)
    assert cancel(once) == once


def test_a_sum_that_is_a_number_is_a_coefficient():
    assert cancel(residual * (0 + as_expression(0.4))) == cancel(residual * 0.4)


def test_cancelling_deep_sums_takes_no_time():
    e = residual
    for i in range(95):
        e = e + Parameter(f"p{i}")
    assert cancel(e) == e


def test_a_gate_of_many_terms_compiles():
    formula = residual
    for _ in range(40):
        formula = formula + C * (residual - residual)
    operator(one_level(Gate(formula)))


@pytest.mark.parametrize(
    ("weight_", "inside", "outside"),
    [
        (1 / count(token, over=trajectory), "1", "1/count(token, over=trajectory)"),
        (count(token, over=trajectory) / count(token, over=prompt_group), "count(token, over=trajectory)", "1/count(token, over=prompt_group)"),
        (total(weight, over=trajectory) / total(weight, over=prompt_group) / 2, "total(weight, over=trajectory)", "1/(2*total(weight, over=prompt_group))"),
    ],
)  # fmt: skip
def test_what_is_constant_on_a_fibre_leaves_the_sum(weight_, inside, outside):
    source = "token" if inside == "1" else "trajectory"
    assert tuple(map(str, factors_over(weight_, source))) == (inside, outside)


# ---------------------------------------------------------------- lowering


def one_level(gate, **changes):
    arguments = dict(name="one", gates={token: gate}, decomposition=log_ratio(), objective=token_mean())
    return Hierarchy(**{**arguments, **changes})


def two_levels(coarse, fine, decomposition=None, **changes):
    arguments = dict(
        name="two",
        fibrations=[Fibration(token, trajectory, kernel=uniform())],
        gates={trajectory: coarse, token: fine},
        decomposition=decomposition or log_ratio(scale=1 / count(token, over=trajectory)),
        objective=trajectory_mean(),
    )
    return Hierarchy(**{**arguments, **changes})


def test_outputs_of_the_lowered_program():
    p = lower(spec("fiberpo"))
    assert list(map(str, p.outputs)) == [
        "gated_ratio", "objective",
        "residual_trajectory_plus", "gated_trajectory_plus", "residual_token_plus", "gated_token_plus",
        "residual_trajectory_minus", "gated_trajectory_minus", "residual_token_minus", "gated_token_minus",
    ]  # fmt: skip
    assert p.outputs[Key("objective")].stratum == "batch"
    assert p.outputs[Key("gated_ratio")].stratum == "token"
    assert p.outputs[Key("gated", "trajectory", "+")].stratum == "trajectory"


def test_constant_gates_are_lowered():
    for formula, expected in ((exp(minimum(0, 1)) - 1, 0.0), (as_expression(Fraction(1, 3)) + 0, 1 / 3)):
        h = two_levels(Gate(formula), identity_gate(), log_ratio())
        batch = spread_batch()
        found = Oracle(h, batch).run("levels")["gated_trajectory"]  # intensive: per token
        assert found == pytest.approx(expected / np.array(batch.lengths), abs=1e-300)


def test_no_token_reaches_across_what_it_does_not_lie_over():
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
    "attribute_weight", "C_plus", "C_minus_2", "cotangent_2", "ratio", "push", "pull", "spread", "fibre", "math", "float",
    "inputs", "over", "gated_token_plus_1", "gated_trajectory_plus_1", "gated_trajectory_minus_1", "value_token_2",
    "d_ratio", "coefficients_2", "evaluate", "x", "f",
]  # fmt: skip


@pytest.mark.parametrize("name", COLLIDING)
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


def test_strata_may_share_their_names_with_temporaries():
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


# ---------------------------------------------------------------- the adjoint

DIFFERENTIABLE = [(op, row.arity) for op, row in PRIMITIVES.items() if not row.is_condition]


@pytest.mark.parametrize(("op", "arity"), DIFFERENTIABLE)
@pytest.mark.parametrize("point", [(0.7, 1.3), (1.9, 0.4)])
def test_derivatives_of_scalar_operators(op, arity, point):
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


def test_push_and_pull_are_each_other_s_transpose():
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


def test_what_is_read_in_several_ways_gets_what_comes_back_along_each():
    """Also where the same comes back along two of them."""
    once, again = (Map(scalar("add", arg(0), arg(1)), (x, other)) for other in (y, Const(1.0, "fine")))
    p = program(out=Map(scalar("add", arg(0), scalar("add", arg(1), arg(2))), (once, again, x)))
    assert run(derived(p, "out", "x"), x=np.ones(6), y=np.ones(6))["g"].tolist() == [3] * 6


def test_detach_stops_the_derivative():
    product = Map(scalar("mul", arg(0), arg(1)), (x, Detach(Map(scalar("exp", arg(0)), (x,)))))
    u = np.linspace(-1, 1, 6)
    g = run(derived(program(out=product), "out", "x"), x=u)["g"]
    assert g == pytest.approx(np.exp(u), rel=1e-15)


def test_what_does_not_depend_on_an_input_has_derivative_zero():
    p = program(out=Map(scalar("exp", arg(0)), (y,)), other=x)
    assert run(derived(p, "out", "x"), x=np.ones(6), y=np.ones(6))["g"].tolist() == [0] * 6
    missing = Input("missing", "coarse", "test")
    nowhere = adjoint(p, {Key("out"): Const(1.0, "fine")}, {Key("g"): (missing,)})
    assert nowhere.outputs[Key("g")] == Const(0.0, "coarse")


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
    oracle = Oracle(h, batch)
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
        assert Oracle(h, batch).ratio(u) == pytest.approx(np.exp(u), rel=1e-12)


# ---------------------------------------------------------------- optimising


def same(before, after, tolerance=1e-15):
    """Equal up to roundings wherever the first has a finite value."""
    for key, b in before.items():
        a = after[key]
        good = np.isfinite(b)
        scale = np.maximum(np.abs(b[good]), 1e-300)
        assert (np.abs(a[good] - b[good]) <= tolerance * scale).all(), key


@settings(max_examples=25)
@given(case=cases())
def test_optimising_keeps_every_output(case):
    hierarchy, batch = case
    oracle = Oracle(hierarchy, batch)
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
                return np.full(6, s.value), 0.0
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
def test_what_could_change_a_value_stays(body):
    assert simplify(body) is body


def test_infinities_in_a_branch_not_taken_do_no_harm():
    """exp(1000) overflows in the branch that is dead, in the value and in the derivative."""
    h = two_levels(
        identity_gate(),
        Gate(where(residual > 0, where(residual > 1, 1, residual), exp(1000 * -residual) * 0 + log(1 - residual))),
    )
    batch = Batch((2, 2), np.array([900.0, -900.0, 0.25, 0.5]), np.ones(4))
    for x_ in (batch.x, np.array([0.25, 1.5, 40.0, -1e-3])):
        oracle = Oracle(h, batch.with_x(x_))
        found = oracle.run("levels")["gated_token"]
        assert np.isfinite(found).all()
        assert np.isfinite(oracle.coefficients()[2:]).all()
    safe = one_level(Gate(where(residual <= 0, residual, sqrt(residual))))
    c = Oracle(safe, Batch((3,), np.array([-4.0, 0.0, 4.0]), np.ones(3))).coefficients()
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
    once = Map(scalar("neg", arg(0)), (y,))
    out = Map(scalar("mul", scalar("add", arg(0), arg(1)), arg(0)), (shared, once))
    other = Map(scalar("log", arg(0)), (shared,))
    p = optimise(program(out=out, other=other))
    assert shared in set(p.nodes())
    assert once not in set(p.nodes())
    named = optimise(Program("p", ("fine",), {Key("out"): out}, {once: Key("kept")}))
    assert once in set(named.nodes())


# ---------------------------------------------------------------- scheduling and emitting


@pytest.mark.parametrize("name", SPECS)
def test_schedules_are_topological_with_unique_names(name):
    for p in raw_programs(spec(name)).values():
        for stage in (p, optimise(p)):
            s = schedule(stage, frozenset({"ratio", "x"}))
            names = [step.name for step in s.steps]
            assert len(set(names)) == len(names)
            assert all(n.isidentifier() for n in names)
            assert not {"ratio", "x"} & set(names)
            done, dropped = set(), set()
            for step in s.steps:
                operands = {s.names[o] for o in step.node.operands}
                assert operands <= done - dropped
                done.add(step.name)
                dropped |= set(step.dead)
            assert set(s.results.values()) <= done - dropped
            assert set(s.results) == set(stage.outputs)


def test_only_token_vectors_are_dropped():
    p = optimise(raw_programs(spec("fiberpo_domain"))["evaluate"])
    s = schedule(p)
    by_name = {step.name: step.node for step in s.steps}
    dropped = [n for step in s.steps for n in step.dead]
    assert dropped
    assert {by_name[n].stratum for n in dropped} == {"token"}
    assert len(set(dropped)) == len(dropped)


@pytest.mark.parametrize("name", [*SPECS, "random"])
def test_emitted_source_compiles_and_imports_only_torch(name):
    for h in [spec(name)] if name != "random" else [random_hierarchy(s) for s in range(8)]:
        source = compiling.generate(h, "torch").source
        tree = ast.parse(source)
        imported = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                imported |= {a.name for a in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module)
        assert imported <= {"__future__", "math", "typing", "torch"}
        assert not {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} & {"eval", "exec", "open", "__import__"}
        functions = {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}
        assert {"evaluate", "objective", "gate", "gate_adjoint", "levels"} <= functions
        assert source == compiling.generate(h, "torch").source


def test_a_standalone_module_needs_nothing_but_torch():
    """The generated source, executed alone, gives what the operator gives."""
    op = operator(spec("fiberpo"))
    batch = spread_batch()
    layout = packed(op, batch)
    module = {"__name__": "standalone"}
    exec(compile(op.source, "standalone", "exec"), module)
    parent = torch.from_numpy(batch.row)
    n = torch.tensor(batch.lengths, dtype=torch.float64)
    one = torch.zeros(1, dtype=torch.int64)
    over = {
        ("token", "trajectory"): module["fibre"](parent, 6),
        ("token", "batch"): module["fibre"](one.expand(batch.tokens), 1),
        ("trajectory", "batch"): module["fibre"](one.expand(6), 1),
    }
    inputs = {
        "log_prob": torch.from_numpy(batch.x),
        "old_log_prob": torch.zeros(batch.tokens, dtype=torch.float64),
        "advantage": torch.from_numpy(batch.advantages),
        "epsilon": torch.tensor([0.05], dtype=torch.float64),
        "count_token_over_trajectory": n,
        "count_trajectory_over_batch": torch.tensor([6.0], dtype=torch.float64),
        "C_trajectory_plus": torch.full((6,), 0.2, dtype=torch.float64),
        "C_trajectory_minus": torch.full((6,), 0.1, dtype=torch.float64),
    }
    found = module["objective"](inputs, over)
    expected, objective = coefficients(op, layout, batch)
    assert found["coefficients"].tolist() == expected.tolist()
    assert float(found["objective"]) == objective


def test_free_text_in_a_header_stays_a_comment():
    reason = "{functions} {header} \n import os # \x85 \u2028 ''' \"\"\" \\"
    h = spec("gspo").replace(gives_up={"first_order": reason})
    source = compiling.generate(h, "torch").source
    ast.parse(source)
    assert source.count("def evaluate") == 1
    batch = spread_batch(per_row=True)
    a, b = operator(h), operator(spec("gspo"))
    assert coefficients(a, packed(a, batch), batch)[0].tolist() == coefficients(b, packed(b, batch), batch)[0].tolist()


def test_a_hierarchy_that_gates_nothing_compiles():
    h = one_level(zero_gate())
    op = operator(h)
    batch = spread_batch()
    c, objective = coefficients(op, packed(op, batch), batch)
    assert c.tolist() == [0.0] * batch.tokens
    assert objective == pytest.approx(batch.advantages.mean(), rel=1e-14)
    layout = packed(op, batch)
    assert op.gate(layout.tensor(batch.x), layout.index).tolist() == [1.0] * batch.tokens


@pytest.mark.parametrize(
    "gate",
    [dual_clip_gate(0.2, 0.3, 3), log_clip_gate(0.2, 0.3), clip_gate(0.1), aggregate_gate(0.1, rollback=4)],
    ids=repr,
)
def test_numbers_in_gates_reach_the_generated_code(gate):
    h = one_level(gate)
    batch = spread_batch(scale=0.5)
    op = operator(h)
    c, _ = coefficients(op, packed(op, batch), batch)
    direction = np.sin(np.arange(batch.tokens))
    assert c @ direction == pytest.approx(exact(h, batch, direction).slope, rel=1e-12)


@settings(max_examples=30)
@given(batch=batches())
def test_interned_scalars_do_not_leak_between_hierarchies(batch):
    """Programs share nodes; two hierarchies with one shape and different numbers stay apart."""
    a, b = (one_level(clip_gate(v)) for v in (0.125, 0.25))
    for h, bound in ((a, 0.125), (b, 0.25)):
        op = operator(h)
        gated = np.log(packed(op, batch).read(op.gate(packed(op, batch).tensor(batch.x), packed(op, batch).index)))
        assert gated == pytest.approx(np.clip(batch.x, -bound, bound), abs=1e-15)


def test_scalar_printing():
    assert str(Scalar("add", (arg(0), const(2)))) == "add($0, 2.0)"
