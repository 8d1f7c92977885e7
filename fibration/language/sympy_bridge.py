"""The translation between formulas of the language and sympy, in both directions. No other module translates."""

from __future__ import annotations

import operator
from collections.abc import Callable
from fractions import Fraction
from functools import cache, lru_cache, reduce
from typing import Any, TypeGuard

import sympy
from sympy import Dummy

from fibration.errors import SpecError
from fibration.language import polynomials
from fibration.language.atoms import Attribute, Count, Total, token_log_ratio
from fibration.language.declared import CURRENT, OLD, LogProb, Policy
from fibration.language.expressions import Apply, Expression, Number, apply, as_expression, write
from fibration.language.operators import COMPARISONS, OPERATORS, atan, exp, sqrt, where
from fibration.language.polynomials import Polynomial, Quotient, TooLarge

# sqrt(-1), log(0) and 0/0 have no value, and sympy cannot compare I, zoo and nan: a symbol stands for each.
NO_VALUES = {c: Dummy(f"value of {c}", real=True) for c in (sympy.I, sympy.nan, sympy.zoo)}
COMPARING = (*COMPARISONS, "minimum", "maximum", "clip")
MOST_POWERS = 100  # of a root or an exponential function that sympy cancels
MOST_FACTORED = 6  # sympy factors no expression with more symbols
ATOM_OF: dict[Dummy, Expression] = {}  # the atom of every symbol


class Stopped(sympy.Function):  # type: ignore[misc]
    """The sympy function for `stop`: a value without a derivative."""

    nargs = 1
    is_real = True

    def fdiff(self, argindex: int = 1) -> Any:
        return sympy.Integer(0)


# Every operator on sympy's values. A class is also read back as its operator.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "**": operator.pow,
    "neg": operator.neg, "<": sympy.Lt, "<=": sympy.Le, ">": sympy.Gt, ">=": sympy.Ge,
    "and": sympy.And, "or": sympy.Or, "not": sympy.Not, "where": lambda c, a, b: sympy.Piecewise((a, c), (b, True)),
    "stop": Stopped, "minimum": sympy.Min, "maximum": sympy.Max,
    "clip": lambda a, low, high: sympy.Min(sympy.Max(a, low), high), "abs": sympy.Abs, "sign": sympy.sign,
    "exp": sympy.exp, "expm1": lambda x: sympy.exp(x) - 1, "log": sympy.log, "log1p": lambda x: sympy.log(1 + x),
    "tanh": sympy.tanh, "sigmoid": lambda x: 1 / (1 + sympy.exp(-x)), "sqrt": sympy.sqrt,
    "softplus": lambda x: sympy.log(1 + sympy.exp(x)), "atan": sympy.atan,
}  # fmt: skip
_CLASSES = {FUNCTIONS[name]: name for name in OPERATORS if isinstance(FUNCTIONS[name], type)}
OPERATOR_OF: dict[Any, str] = {sympy.Add: "+", sympy.Mul: "*", **_CLASSES}
BOUNDS = {sympy.tanh: sympy.Integer(1), sympy.atan: sympy.pi / 2}  # on the absolute value
_WORDS = [head.__name__ for head, name in _CLASSES.items() if not OPERATORS[name].sign]
_CONSTANTS = {sympy.E: exp(1), sympy.pi: 4 * atan(1)}


@cache  # evicting one would give its atom a second symbol
def symbol(atom: Expression) -> Dummy:
    """Returns the sympy symbol of an atom: equal atoms have equal symbols.

    Its sympy assumptions hold in every hierarchy. A count may be 0, over an empty branch of a tree; `Assumptions`
    decides where it is not.
    """
    known = {"real": True}
    if isinstance(atom, Count):
        known = {"nonnegative": True, "integer": True}
    elif isinstance(atom, Total) and atom.attribute.positive:
        known = {"nonnegative": True}
    elif isinstance(atom, Attribute) and atom.positive:
        known = {"positive": True}
    elif isinstance(atom, LogProb):
        known = {"nonpositive": True}
    made = Dummy(write(atom), **known)
    ATOM_OF[made] = atom
    return made


@lru_cache(maxsize=65536)
def to_sympy(expression: Expression) -> Any:
    """Returns the sympy form of an expression:

    - the count of a stratum over itself is 1;
    - the total of an attribute over its own stratum is the attribute;
    - the log-prob of the current policy is the old log-prob plus the log ratio.
    """
    if isinstance(expression, Number):
        return sympy.Rational(expression.value.numerator, expression.value.denominator)
    if isinstance(expression, Apply):
        arguments = [to_sympy(a) for a in expression.arguments]
        if expression.operator in COMPARING:
            arguments = [a.xreplace(NO_VALUES) for a in arguments]
        return FUNCTIONS[expression.operator](*arguments)
    if isinstance(expression, Count) and expression.of == expression.over:
        return sympy.Integer(1)
    if isinstance(expression, Total) and expression.over == expression.attribute.on:
        return symbol(expression.attribute)
    if expression == CURRENT_LOG_PROB:
        return symbol(OLD_LOG_PROB) + symbol(token_log_ratio)
    return symbol(expression)


CURRENT_LOG_PROB, OLD_LOG_PROB = LogProb(Policy(CURRENT)), LogProb(Policy(OLD))


def flowing(value: Any) -> Any:
    """Returns a value without its stops: each `Stopped(x)` becomes `x`. Apply it after taking derivatives."""
    return value.replace(Stopped, lambda x: x) if value.has(Stopped) else value


def from_sympy(value: Any) -> Expression:
    """Returns the formula of a sympy expression, for printing and for users who build formulas with sympy.

    Raises SpecError for an expression that the language lacks.
    """
    if value in ATOM_OF:
        return ATOM_OF[value]
    if isinstance(value, sympy.Rational):
        return as_expression(Fraction(int(value.p), int(value.q)))
    if value in _CONSTANTS:
        return _CONSTANTS[value]
    if isinstance(value, sympy.Float):
        return as_expression(float(value))
    if isinstance(value, sympy.Piecewise):
        result = from_sympy(value.args[-1][0])
        for branch, condition in reversed(value.args[:-1]):
            result = where(from_sympy(condition), from_sympy(branch), result)
        return result
    if isinstance(value, sympy.Pow) and value.exp.is_Rational and value.exp.q in (1, 2):
        base, n = from_sympy(value.base), int(value.exp.p)
        base = base if value.exp.q == 1 else sqrt(base)
        power = base if abs(n) == 1 else base ** abs(n)
        return power if n > 0 else 1 / power
    if isinstance(value, sympy.Mul):
        if value.args[0].is_Rational and value.args[0] < 0:
            return -from_sympy(-value)
        top, bottom = value.as_numer_denom()
        if bottom != 1:
            return from_sympy(top) / from_sympy(bottom)
    if value.func in OPERATOR_OF and value.args:
        operator, args = OPERATOR_OF[value.func], [from_sympy(a) for a in value.args]
        if len(args) == 1:
            return apply(operator, *args)
        if operator == "+":  # positive terms first, so that `b - a` is not printed as `-a + b`
            args.sort(key=_is_negated)
        result = args[0]
        for a in args[1:]:
            result = result - a.arguments[0] if operator == "+" and _is_negated(a) else apply(operator, result, a)
        return result
    raise SpecError(
        f"the sympy expression {value} cannot be used here",
        required=f"numbers, our atoms, + - * / ** sqrt Piecewise {' '.join(_WORDS)}",
    )


def _is_negated(e: Expression) -> TypeGuard[Apply]:
    return isinstance(e, Apply) and e.operator == "neg"


def show(value: Any) -> str:
    """Returns a sympy expression in the written grammar."""
    if value.is_rational_function():
        few = len(value.free_symbols) <= MOST_FACTORED
        value = sympy.factor(value) if few else from_quotient(quotient(value))
    return write(from_sympy(value))


# ---------------------------------------------------------------- polynomials

_ATOMS: dict[Any, int] = {}  # the atom numbers of sympy expressions in polynomials
_EXPRESSIONS: list[Any] = []


def atom_number(value: Any) -> int:
    """Returns the atom number of an expression without structure: a symbol, a function or an irrational number."""
    if value not in _ATOMS:
        _ATOMS[value] = len(_EXPRESSIONS)
        _EXPRESSIONS.append(value)
    return _ATOMS[value]


def atom_expression(atom: int) -> Any:
    return _EXPRESSIONS[atom]


@lru_cache(maxsize=65536)
def quotient(value: Any) -> Quotient:
    """Returns a sympy expression as powers of factors. Functions are atoms; `exp(a + 2*b)` is `exp(a)·exp(b)²`.

    Raises `TooLarge`, and `ValueError` for infinity and for a division by 0.
    """
    if value.is_Rational:
        return polynomials.number(Fraction(int(value.p), int(value.q)))
    if value.is_Add:
        return polynomials.total(map(quotient, value.args))
    if value.is_Mul:
        return polynomials.product(map(quotient, value.args))
    if isinstance(value, sympy.exp):
        return polynomials.product(map(_exponential, sympy.Add.make_args(value.args[0])))
    if value.is_Pow and value.exp.is_Rational:
        whole, rest = divmod(int(value.exp.p), int(value.exp.q))
        base = quotient(value.base)
        if not base and value.exp < 0:
            raise ValueError(f"{value} has no value")
        if not rest:
            return base**whole
        return base**whole * polynomials.power(atom_number(sympy.Pow(value.base, sympy.Rational(1, value.exp.q))), rest)
    if not value.is_finite and (value.is_number or value.is_infinite):
        raise ValueError(f"{value} has no value")
    return polynomials.power(atom_number(value))


def _exponential(term: Any) -> Quotient:
    """Returns `exp` of one term of a sum: a power of `exp` of the term without its coefficient."""
    c, rest = term.as_coeff_Mul()
    if not c.is_Rational:
        c, rest = sympy.Integer(1), term
    if rest.could_extract_minus_sign():
        c, rest = -c, -rest
    exponent = Fraction(int(c.p), int(c.q))
    whole = exponent.denominator == 1
    return polynomials.power(atom_number(sympy.exp(rest)), int(exponent) if whole else exponent)


def from_quotient(q: Quotient) -> Any:
    """Returns the sympy expression of a quotient, still factored."""
    number, factors = q.number, dict(q.factors)
    turned = next((f for f, p in factors.items() if isinstance(f, Polynomial) and p % 2), None) if number < 0 else None
    made = [sympy.Rational(number.numerator, number.denominator) * (-1 if turned else 1)]
    for f, p in factors.items():
        base = atom_expression(f) if isinstance(f, int) else from_polynomial(-f if f is turned else f)
        made.append(base ** sympy.Rational(p.numerator, p.denominator))
    return sympy.Mul(*made)


def from_polynomial(p: Polynomial) -> Any:
    terms = [
        sympy.Mul(c, *(atom_expression(a) ** sympy.Rational(e.numerator, e.denominator) for a, e in monomial))
        for monomial, c in p.terms.items()
    ]
    return sympy.Add(*terms)


def cancelled(value: Any) -> Any:
    """Returns `sympy.cancel` of a value, in which roots and exponential functions with large exponents are atoms.

    sympy writes `exp(1.0001*x)` as a power of `exp(x/10000)`, and one operation on a polynomial of degree 10001 takes
    hours, in which no time limit can stop it.
    """
    alike: dict[Any, list[Any]] = {}
    for v in value.atoms(sympy.Pow, sympy.exp):
        base, exponent = v.as_base_exp()
        if not exponent.is_Integer and any(max(abs(c.p), c.q) > MOST_POWERS for c in exponent.atoms(sympy.Rational)):
            alike.setdefault((base, exponent.as_coeff_Mul(rational=True)[1]), []).append(v)
    powers: dict[Any, Any] = {}
    meaning: dict[Any, Any] = {}
    for (base, rest), found in alike.items():
        factors = [v.as_base_exp()[1].as_coeff_Mul(rational=True)[0] for v in found]
        unit = reduce(sympy.Rational.gcd, factors)
        for v, c in zip(found, factors, strict=True):
            step = unit if all(abs(each) <= MOST_POWERS * unit for each in factors) else c
            powers[v] = meaning.setdefault(base ** (step * rest), Dummy()) ** (c / step)
    return sympy.cancel(value.xreplace(powers)).xreplace({atom: v for v, atom in meaning.items()})


def vanishes(value: Any) -> bool:
    """Whether an expression is shown to be identically zero. Complete for rational functions that are not too large."""
    return _vanishes(sympy.sympify(value))


@lru_cache(maxsize=65536)
def _vanishes(value: Any) -> bool:
    try:
        if not quotient(value):
            return True
    except (TooLarge, ValueError):
        return False
    if value.is_rational_function():
        return False
    reduced = cancelled(sympy.together(value))  # unlike our atoms, sympy functions have identities
    return bool(reduced == 0 or sympy.expand(reduced) == 0)
