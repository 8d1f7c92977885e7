"""Tests every row of the table of operators against an independent definition."""

from __future__ import annotations

import inspect
import itertools
import json
import math
from dataclasses import MISSING, fields
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import sympy
import torch

import fibration
from fibration import Parameter
from fibration.backends.bodies import Language
from fibration.backends.c import language as c
from fibration.backends.torch import emit as torch_emit
from fibration.backends.triton import language as triton
from fibration.compiler.interpret import MEANING, compute
from fibration.compiler.ir import arg, scalar
from fibration.compiler.scalars import derivative
from fibration.errors import BackendError, SpecError
from fibration.language.atoms import Reading
from fibration.language.exact import NoValue
from fibration.language.expressions import Expression, apply, as_expression
from fibration.language.grammar import parse
from fibration.language.operators import CALLED, OPERATORS, PRIMITIVES, Composed, Primitive, Sugar, Valued
from fibration.language.sympy_bridge import BOUNDS, FUNCTIONS, OPERATOR_OF, from_sympy, to_sympy
from fibration.language.traversal import desugar, evaluate
from fibration.printing.latex import tex

VALUED = [name for name, row in OPERATORS.items() if isinstance(row, Valued) and name != "where"]
NUMERIC = [name for name in VALUED if not OPERATORS[name].is_condition]  # from numbers to a number
POINTS = [Fraction(n, 12) for n in (-84, -24, -19, -12, -5, 0, 1, 4, 7, 12, 17, 24, 90)]
PLACES = (Reading("a"), Reading("b"), Reading("c"))


def points(name: str) -> list[tuple[Fraction, ...]]:
    """Arguments on both sides of every domain, and at its ends."""
    if name == "**":
        return [(a, Fraction(n)) for a in POINTS for n in (1, 2, 5)]
    return list(itertools.product(POINTS, repeat=OPERATORS[name].arity))


def row(name: str) -> Valued:
    found = OPERATORS[name]
    assert isinstance(found, Valued)
    return found


def value(name: str, at: tuple[Fraction, ...]) -> Fraction | None:
    try:
        return evaluate(apply(name, *at), {})  # type: ignore[no-any-return]
    except NoValue:
        return None


def sign(x: Fraction) -> int:
    return (x > 0) - (x < 0)


def applied(name: str, arguments: tuple[Expression, ...] = PLACES) -> Expression:
    """The operator on as many arguments as it takes."""
    found = OPERATORS[name]
    if name == "**":
        return arguments[0] ** 3
    parts = [a > i if i in found.conditions else a for i, a in enumerate(arguments[: found.arity])]
    return apply(name, *parts)


@pytest.mark.parametrize("kind", [Sugar, Composed, Primitive])
def test_an_operator_that_lacks_a_field_is_refused_at_import(kind: type) -> None:
    """Without `domain` a law could be proved where a formula has no value; without `rounded` a law could be refuted."""
    whole = next(r for r in OPERATORS.values() if isinstance(r, kind))
    given = {f.name: getattr(whole, f.name) for f in fields(whole)}
    assert kind(**given) == whole
    required = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}
    unsafe = {Sugar: {"expand"}, Composed: {"lowered", "domain"}}
    unsafe[Primitive] = {"exact", "rounded", "domain", "slopes", "ir"}
    assert required >= unsafe[kind] | {"latex", "arity"}
    for name in required:
        with pytest.raises(TypeError, match=name):
            kind(**{k: v for k, v in given.items() if k != name})


@pytest.mark.parametrize("name", VALUED)
def test_an_operator_has_a_value_exactly_on_its_domain(name: str) -> None:
    if row(name).conditions:
        return
    for at in points(name):
        needs = row(name).domain(*(as_expression(a) for a in at))
        inside = all(sign(evaluate(e, {})) in signs for e, signs in needs)
        assert inside == (value(name, at) is not None), at


@pytest.mark.sampled
@pytest.mark.parametrize("name", NUMERIC)
def test_exact_values_equal_sympy_and_are_rounded_only_if_marked(name: str) -> None:
    errors = []
    for at in points(name):
        y = value(name, at)
        if y is None:
            continue
        symbols = sympy.symbols(["a", "b"][: len(at)], real=True)
        with mpmath.workdps(120):
            place = [mpmath.mpf(v.numerator) / v.denominator for v in at]
            right = sympy.lambdify(symbols, FUNCTIONS[name](*symbols), [{"Stopped": lambda a: a}, "mpmath"])(*place)
            errors.append(abs(mpmath.mpf(y.numerator) / y.denominator - right))
            assert errors[-1] <= abs(right) * mpmath.mpf(10) ** -45, at
    assert getattr(row(name), "rounded", False) == (max(errors) > mpmath.mpf(10) ** -100)


@pytest.mark.parametrize("name", [n for n in NUMERIC if OPERATORS[n].arity == 1 and n != "stop"])
def test_limits_and_rational_values_equal_sympy(name: str) -> None:
    primitive, x = row(name), sympy.Symbol("x", real=True)
    assert isinstance(primitive, Primitive)
    for far, limit in zip((-sympy.oo, sympy.oo), primitive.limits, strict=True):
        assert limit is None or sympy.limit(FUNCTIONS[name](x), x, far) == limit
    for at in POINTS:
        if value(name, (at,)) is not None:
            y = sympy.simplify(FUNCTIONS[name](sympy.Rational(at.numerator, at.denominator)))
            assert (not primitive.rounded or primitive.rational_at(at)) == bool(y.is_Rational), at


@pytest.mark.parametrize("name", NUMERIC)
def test_an_operator_is_positive_where_its_row_says(name: str) -> None:
    for at in points(name):
        if OPERATORS[name].positive(a > 0 for a in at):
            assert (y := value(name, at)) is not None and y > 0, at


@pytest.mark.parametrize("name", [n for n in NUMERIC if isinstance(OPERATORS[n], Primitive)])
def test_float64_is_near_the_exact_value(name: str) -> None:
    primitive = OPERATORS[name]
    assert isinstance(primitive, Primitive)
    for at in points(name):
        y = value(name, at)
        if y is not None:
            near = [Fraction(float(a)) for a in at]
            steepest = max(abs(float(value(name, tuple(near)) or 0) - float(y)), 1e-300)  # of rounding the arguments
            assert compute(primitive.ir, *map(float, at)) == pytest.approx(float(y), rel=1e-15, abs=2 * steepest), at


@pytest.mark.parametrize("op", [op for op, r in PRIMITIVES.items() if r.slopes is not None and op != "stop"])
def test_slopes_equal_limits_of_differences(op: str) -> None:
    """The differences are of exact values, so their only error is of the order of the squared step."""
    name = next(n for n, r in OPERATORS.items() if r is PRIMITIVES[op])
    arity = PRIMITIVES[op].arity
    for at in points(name):
        h = Fraction(1, 10**12)
        for i in range(arity):
            up, down = (tuple(a + h * s * (i == j) for j, a in enumerate(at)) for s in (1, -1))
            ends = value(name, up), value(name, down)
            if None in ends or value(name, at) is None:
                continue
            expected = (ends[0] - ends[1]) / (2 * h)  # type: ignore[operator]
            slope = derivative(scalar(op, *map(arg, range(arity))), i)
            found = _interpreted(slope, [float(a) for a in at])
            assert found == pytest.approx(float(expected), rel=1e-12, abs=1e-14), (at, i)


def test_stop_keeps_the_value_and_has_no_slope() -> None:
    assert compute("stop", 0.7) == 0.7
    body = scalar("mul", scalar("stop", arg(0)), arg(0))
    assert _interpreted(derivative(body, 0), [0.7]) == 0.7


def _interpreted(body: Any, at: list[float]) -> float:
    if body.op == "arg":
        return at[body.value]
    return float(body.value) if body.op == "const" else compute(body.op, *(_interpreted(a, at) for a in body.args))


@pytest.mark.parametrize("name", [n for n in OPERATOR_OF.values() if OPERATORS[n].arity == 1 and n != "not"])
def test_facts_that_proofs_use_of_a_function_hold(name: str) -> None:
    known, bound = OPERATORS[name], BOUNDS.get(FUNCTIONS[name])
    for [x] in points(name):
        try:
            y = evaluate(apply(name, x), {})
        except NoValue:
            continue

        def signs(e: Any) -> frozenset[int]:
            return frozenset({int(sympy.sign(e))})

        assert sign(y) in known.signs(signs, sympy.Rational(x.numerator, x.denominator)), x
        assert bound is None or abs(y) < bound, x
    if bound is not None:  # and no smaller one is
        far = evaluate(apply(name, 10**9), {})
        assert bound * (1 - sympy.Rational(1, 10**6)) < far <= bound


@pytest.mark.parametrize("name", OPERATORS)
def test_a_written_formula_reads_back(name: str) -> None:
    epsilon, low, high = (Parameter(n) for n in ("epsilon", "low", "high"))
    formula = applied(name, (epsilon, low, high))
    if formula.is_condition:
        formula = fibration.where(formula, epsilon, low)
    names = {"epsilon": epsilon, "low": low, "high": high}
    assert parse(str(formula), names) == formula
    assert json.loads(json.dumps(str(formula))) == str(formula)


@pytest.mark.parametrize("name", [n for n, r in OPERATORS.items() if not r.is_condition])
def test_conversion_to_sympy_and_back_keeps_the_value(name: str) -> None:
    formula = applied(name)
    back = from_sympy(to_sympy(formula))
    for at in ((Fraction(1, 3), Fraction(1, 2), Fraction(3, 4)), (Fraction(7, 3), Fraction(1, 5), Fraction(3))):
        values = dict(zip(PLACES, at, strict=True))
        assert abs(evaluate(back, values) - evaluate(formula, values)) < Fraction(1, 10**40)
        assert evaluate(desugar(formula), values) == evaluate(formula, values)


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_prints_as_latex(name: str) -> None:
    text = tex(applied(name, (Parameter("alpha"), Parameter("beta"), Parameter("gamma"))))
    assert text.count("{") == text.count("}") and text.count(r"\left") == text.count(r"\right")
    assert "%" not in text and r"\alpha" in text
    assert OPERATORS[name].arity == 1 or r"\beta" in text or name == "**"


@pytest.mark.parametrize("name", CALLED)
def test_operators_called_by_name_are_public_functions(name: str) -> None:
    function = getattr(fibration, {"abs": "absolute"}.get(name, name))
    assert len(inspect.signature(function).parameters) == OPERATORS[name].arity
    arguments = [a > i if i in OPERATORS[name].conditions else a for i, a in enumerate(PLACES)][: OPERATORS[name].arity]
    assert function(*arguments) == apply(name, *arguments)
    assert {"absolute": "abs"}.get(function.__name__, function.__name__) in CALLED
    with pytest.raises(SpecError, match=f"cannot be called '{name}'"):
        Parameter(name)
    with pytest.raises(SpecError, match=f"'{name}' takes {OPERATORS[name].arity} arguments, got 7"):
        parse(f"{name}({', '.join(['residual'] * 7)})", {})


TABLES: dict[str, Any] = {"torch": torch_emit.OPERATORS, "C": c.OPERATORS, "triton": triton.OPERATORS}


@pytest.mark.parametrize("backend", TABLES)
@pytest.mark.parametrize("op", sorted(PRIMITIVES.keys() - {"select"}))
def test_a_backend_without_a_row_is_refused(backend: str, op: str) -> None:
    rows = dict(TABLES[backend])
    del rows[op]
    with pytest.raises(BackendError, match=f"lacks the scalar operator '{op}'"):
        Language(backend, rows, str, str)  # type: ignore[arg-type]
    with pytest.raises(BackendError, match="has no use for the scalar operator 'sinh'"):
        Language(backend, {**TABLES[backend], "sinh": "sinh({})"}, str, str)  # type: ignore[arg-type]


@pytest.mark.parametrize("op", [op for op, r in PRIMITIVES.items() if r.arity == 1 and not r.is_condition])
def test_torch_equals_the_interpreter(op: str) -> None:
    edges = [0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, -5e-324, 1e-300, 1e-17, -1e-17, 745.0, -745.0, 1e300]
    x = np.concatenate(
        [edges, np.linspace(-40, 40, 801), np.geomspace(1e-12, 1e3, 200), -np.geomspace(1e-12, 1e3, 200)]
    )
    found = eval(torch_emit.OPERATORS[op].format("x"), {"torch": torch, "x": torch.from_numpy(x)}).numpy()
    with np.errstate(all="ignore"):
        expected = MEANING[op](x)
    np.testing.assert_allclose(found, expected, rtol=1e-14, atol=2.0**-1022)


def test_a_body_of_one_operator_prints_in_every_language() -> None:
    for language in (torch_emit.LANGUAGE, c.WIDE, c.TOKEN, triton.WIDE, triton.TOKEN):
        for op, primitive in PRIMITIVES.items():
            body = scalar(
                op,
                *(
                    scalar("lt", arg(0), arg(i)) if i in primitive.conditions else arg(i)
                    for i in range(primitive.arity)
                ),
            )
            _, text = language.write(body, ["x", "y", "z"], "out", set())
            assert "x" in text and (primitive.arity == 1 or "y" in text)
