"""Formulas of single numbers, in one normal form: sums of products of atoms, with one exponential in each product.

A formula that is a number is that number. Atoms are variables, functions of formulas, sums that are raised to a power,
and choices by a condition. Equal formulas are one object. Conditions are comparisons of a formula with 0.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import reduce
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

MOST = 150  # products of terms that are multiplied out
ROUNDING = Fraction(1, 10**15)  # of a float, relative
SMALL = 1e-14  # what a difference may be in the place of 0
SHORT = 1e-14  # by which a number may differ from the one that is written, relative
# variables that come after others in sums
LATER = {"advantages": 1, "rewards": 1, "x": 2, "mean": 2} | dict.fromkeys(
    ("sum", "others", "deviation", "population", "largest", "before", "after"), 3
)
SIMPLE = 1000  # denominators that a float is read with


class Untraced(Exception):
    """A function has no formula here: it does what no rule says, or has too many paths.

    `seen`: formulas of the first of them.
    """

    seen: Sequence[Any] = ()


class Atom:
    """An operator and its arguments: `var`, a function, `of` a sum, `choose`, or a condition.

    `rank`: its place in the order of terms. That of a variable does not depend on what was recorded before it.
    """

    __slots__ = ("__weakref__", "args", "free", "id", "op", "rank")
    op: str
    args: tuple[Any, ...]
    id: int
    rank: tuple[int, Any]
    free: frozenset[Atom]


class Formula:
    """`terms`: for the atoms of a product with their powers, and the argument of its exponential: its factor."""

    __slots__ = ("__weakref__", "free", "id", "terms")
    terms: dict[Any, Any]
    id: int
    free: frozenset[Atom]

    def __bool__(self) -> bool:
        raise TypeError("the truth of a formula")


_KNOWN: WeakValueDictionary[Any, Any] = WeakValueDictionary()
_count = iter(range(1 << 62))


def _interned(cls: Any, key: Any, name: str, value: Any, op: str = "") -> Any:
    found = _KNOWN.get(key)
    if found is None:
        found = _KNOWN[key] = cls()
        setattr(found, name, value)
        found.id = next(_count)
        if op:
            found.op = op
            found.rank = (LATER.get(value[0], 0), repr(value)) if op == "var" else (len(LATER), found.id)
        found.free = frozenset([found]) if op == "var" else frozenset().union(*map(free, below(found)))
    return found


def atom(op: str, *args: Any) -> Any:
    key = (op, *(a.id if isinstance(a, (Atom, Formula)) else (type(a).__name__, a) for a in args))
    return _interned(Atom, key, "args", args, op)


def from_terms(terms: dict[Any, Any]) -> Any:
    if not terms:
        return 0
    if len(terms) == 1 and (c := terms.get(((), None))) is not None:
        return _whole(c)
    key = frozenset((tuple((a.id, p) for a, p in m), None if e is None else e.id, c) for (m, e), c in terms.items())
    return _interned(Formula, key, "terms", terms)


def single(a: Any, power: int = 1) -> Any:
    return from_terms({(((a, power),), None): 1})


def _whole(q: Any) -> Any:
    return int(q) if isinstance(q, Fraction) and q.denominator == 1 else q


def number(x: Any) -> Any:
    """A float as the simplest number beside it, of few digits or a small fraction; NaN and infinities stay floats."""
    if isinstance(x, (bool, np.bool_)):
        return bool(x)
    if isinstance(x, (int, Fraction)) or not math.isfinite(x):
        return x if isinstance(x, (int, Fraction)) else float(x)
    exact = Fraction(float(x))
    near = (Fraction(f"{x:.12g}"), exact.limit_denominator(SIMPLE), Fraction(repr(float(x))))
    return _whole(next((v for v in near if abs(v - exact) <= ROUNDING * abs(exact)), exact))


def short(x: float, by: float = SHORT) -> Any:
    """A number in as few digits as tell it from those that differ by more than `by`, relative."""
    return next((v for d in range(1, 17) if abs((v := float(f"{x:.{d}g}")) - x) <= by * abs(x)), x) if x else 0


def is_number(x: Any) -> bool:
    return not isinstance(x, (Formula, Atom))


def _numeric(x: Any) -> Any:
    """A condition as 0 or 1."""
    return choose(x, 1, 0) if isinstance(x, Atom) else int(x) if isinstance(x, (bool, np.bool_)) else x


def terms_of(x: Any) -> dict[Any, Any]:
    return x.terms if isinstance(x, Formula) else {((), None): x} if x else {}


def _summed(each: Iterable[tuple[Any, Any]]) -> Any:
    out: dict[Any, Any] = {}
    for key, c in each:
        if (total := out.get(key, 0) + c) == 0:
            out.pop(key, None)
        else:
            out[key] = total
    return from_terms(out)


def add(*values: Any) -> Any:
    values = tuple(map(_numeric, values))
    if any(isinstance(v, float) for v in values):  # NaN, or an infinity
        return sum(float(v) for v in values if is_number(v))
    return _summed(term for v in values for term in terms_of(v).items())


def mul(a: Any, b: Any) -> Any:
    a, b = _numeric(a), _numeric(b)
    if isinstance(a, float) or isinstance(b, float):
        return float(a) * float(b) if is_number(a) and is_number(b) else math.nan
    one, two = terms_of(a), terms_of(b)
    if len(one) * len(two) > MOST and min(len(one), len(two)) > 1:
        wide, other = (a, b) if len(one) > len(two) else (b, a)
        return mul(single(atom("of", wide)), other)
    return _summed((_product(k1, k2), c1 * c2) for k1, c1 in one.items() for k2, c2 in two.items())


def is_indicator(a: Atom) -> bool:
    """Whether a number that is 1 or 0."""
    return a.op == "choose" and a.args[1:] in ((1, 0), (0, 1))


def _root(x: Any) -> Any:
    """0 of what is below 0 by rounding."""
    return np.sqrt(np.where((x < 0) & (x > -SMALL), 0.0, x))


def _product(one: Any, two: Any) -> Any:
    (m, e), (n, f) = one, two
    if m and n:
        powers = dict(m)
        for a, p in n:
            powers[a] = powers.get(a, 0) + p
        powers = {a: min(p, 1) if is_indicator(a) else p for a, p in powers.items() if p}
        m, n = tuple(sorted(powers.items(), key=lambda x: x[0].id)), ()
    exponent = f if e is None else e if f is None else add(e, f)
    return m or n, (None if is_number(exponent) else exponent)


def neg(a: Any) -> Any:
    return mul(-1, a)


def sub(a: Any, b: Any) -> Any:
    return add(a, neg(b))


def div(a: Any, b: Any) -> Any:
    a, b = _numeric(a), _numeric(b)
    if not is_number(b):
        return mul(a, power(b, -1))
    if b and not isinstance(b, float):
        return mul(a, _whole(Fraction(1) / b))
    with np.errstate(all="ignore"):
        return float(np.divide(float(a), float(b))) if is_number(a) else math.nan


def power(a: Any, p: Any) -> Any:
    a, p = _numeric(a), _numeric(p)
    if not is_number(p) or (not is_number(a) and not isinstance(p, int)):
        return apply("sqrt", a) if p == Fraction(1, 2) else exp(mul(p, log(a)))
    if is_number(a):
        if isinstance(p, int) and not isinstance(a, float) and (a or p >= 0):
            return _whole(Fraction(a) ** p)
        with np.errstate(all="ignore"):
            return number(np.power(float(a), float(p)))
    if 0 <= p <= 4:
        return reduce(mul, [a] * p, 1)
    lead = Fraction(a.terms[first_term(a)])
    if len(a.terms) > 1:
        return mul(_whole(lead**p), single(atom("of", mul(a, _whole(1 / lead))), p))
    ((m, e),) = a.terms
    return (
        from_terms({(tuple((x, q * p) for x, q in m), None if e is None else mul(p, e)): _whole(lead**p)}) if p else 1
    )


def first_term(a: Formula) -> Any:
    """The first term in an order that does not depend on factors; the constant comes last."""

    def order(key: Any) -> Any:
        m, e = key
        return not m and e is None, [(x.rank, p) for x, p in m], -1 if e is None else e.id

    return min(a.terms, key=order)


def exp(x: Any) -> Any:
    x = _numeric(x)
    if is_number(x):
        with np.errstate(all="ignore"):
            return number(np.exp(float(x))) if x else 1

    def rest(*keys: Any) -> Any:
        return from_terms({k: c for k, c in x.terms.items() if k not in keys})

    alone = {k: k[0][0][0] for k in x.terms if k[1] is None and len(k[0]) == 1 and k[0][0][1] == 1}
    choices = [k for k, a in alone.items() if a.op == "choose"]
    if len(choices) == 1:
        k, (condition, one, two) = x.terms[choices[0]], alone[choices[0]].args
        return choose(condition, *(exp(add(rest(choices[0]), mul(k, v))) for v in (one, two)))
    if logs := [k for k, a in alone.items() if a.op == "log" and isinstance(x.terms[k], int)]:
        return reduce(mul, [power(alone[k].args[0], x.terms[k]) for k in logs], exp(rest(*logs)))
    constant = ((), None)
    return mul(exp(x.terms.get(constant, 0)), from_terms({((), rest(constant)): 1}))


def log(x: Any) -> Any:
    x = _numeric(x)
    if not is_number(x) and len(x.terms) == 1:
        (((m, e), c),) = x.terms.items()
        if not m and c > 0:
            return add(e, log(c))
    return apply("log", x)


def _quantile(level: Any, *x: Any) -> Any:
    *values, level = np.broadcast_arrays(*x, level)
    ordered = np.sort(np.stack(values), axis=0)
    place = level * (len(x) - 1)
    low = np.clip(np.floor(place).astype(int), 0, len(x) - 1)
    one, two = (np.take_along_axis(ordered, np.minimum(i, len(x) - 1)[None], 0)[0] for i in (low, low + 1))
    return one + (two - one) * (place - low)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "log": np.log, "sqrt": _root, "tanh": np.tanh, "atan": np.arctan, "floor": np.floor, "ceil": np.ceil,
    "round": np.round, "trunc": np.trunc, "quantile": _quantile,
}  # fmt: skip


def apply(name: str, *args: Any) -> Any:
    args = tuple(map(_numeric, args))
    if not all(map(is_number, args)):
        return single(atom(name, *args))
    with np.errstate(all="ignore"):
        return number(FUNCTIONS[name](*map(float, args)))


# ------------------------------------------------------------ conditions


def less(a: Any, b: Any, op: str = "lt") -> Any:
    """The condition a < b; `op`: also `le` and `eq`."""
    a, b = _numeric(a), _numeric(b)
    if is_number(a) and is_number(b):
        return bool(a < b if op == "lt" else a <= b if op == "le" else a == b)
    if isinstance(a, float) or isinstance(b, float):  # beside an infinity
        return op != "eq" and (b if isinstance(b, float) else -a) == math.inf
    p = sub(a, b)
    if is_number(p):
        return less(p, 0, op)
    signs = {c > 0 for c in p.terms.values()}
    if len(signs) == 1 and not any(m for m, _ in p.terms):  # exponentials are positive
        return op != "eq" and signs == {False}
    lead = p.terms[first_term(p)]
    p = mul(p, _whole(1 / Fraction(lead)))
    return atom(op, p) if lead > 0 or op == "eq" else atom("not", atom("le" if op == "lt" else "lt", p))


def truth(x: Any) -> Any:
    """A number as a condition: whether it is not 0."""
    return bool(x) if isinstance(x, np.bool_) else x if isinstance(x, (bool, Atom)) else negate(less(x, 0, "eq"))


def negate(c: Any) -> Any:
    c = truth(c)
    return (not c) if not isinstance(c, Atom) else c.args[0] if c.op == "not" else atom("not", c)


def both(a: Any, b: Any) -> Any:
    a, b = truth(a), truth(b)
    if not isinstance(a, Atom):
        return b if a else False
    return a if b is a or b is True else False if b is False else atom("and", a, b)


def either(a: Any, b: Any) -> Any:
    return negate(both(negate(a), negate(b)))


def choose(c: Any, a: Any, b: Any) -> Any:
    c = truth(c)
    if not isinstance(c, Atom):
        return a if c else b
    if isinstance(a, (bool, Atom)) and isinstance(b, (bool, Atom)):
        return either(both(c, a), both(negate(c), b))
    a, b = _numeric(a), _numeric(b)
    if a is b or (is_number(a) and is_number(b) and a == b):
        return a
    return choose(c.args[0], b, a) if c.op == "not" else single(atom("choose", c, a, b))


def minimum(a: Any, b: Any) -> Any:
    return choose(less(a, b), a, b)


def maximum(a: Any, b: Any) -> Any:
    return choose(less(a, b), b, a)


# ------------------------------------------------------------ what a formula holds, and its values


def below(x: Any) -> list[Any]:
    """The atoms and formulas that it is made of."""
    if isinstance(x, Formula):
        return [y for m, e in x.terms for y in (*(a for a, _ in m), *([] if e is None else [e]))]
    return [a for a in x.args if not is_number(a)]


def parts(*roots: Any) -> list[Any]:
    """All atoms and formulas of these, each once."""
    seen: dict[int, Any] = {}
    stack = [r for r in roots if not is_number(r)]
    while stack:
        x = stack.pop()
        if x.id not in seen:
            seen[x.id] = x
            stack.extend(below(x))
    return list(seen.values())


def free(x: Any) -> frozenset[Atom]:
    """The variables of a formula."""
    return frozenset() if is_number(x) else x.free


def evaluate(roots: Iterable[Any], at: Mapping[Atom, Any]) -> list[Any]:
    """Values of formulas where variables are numbers, or arrays of them; those that are not given are 0."""
    done: dict[int, Any] = {v.id: x for v, x in at.items()}

    def of(x: Any) -> Any:
        if is_number(x):
            return x if isinstance(x, bool) else float(x)
        if x.id not in done:
            atom_ = 0.0 if isinstance(x, Formula) or x.op == "var" else MEANING[x.op](*map(of, x.args))
            done[x.id] = total(x) if isinstance(x, Formula) else atom_
        return done[x.id]

    def total(x: Formula) -> Any:
        made: Any = None
        for (m, e), c in x.terms.items():  # arrays may be large: nothing is multiplied by 1, or added to 0
            factors = [*([] if c == 1 else [float(c)]), *([] if e is None else [np.exp(of(e))])]
            factors += [of(a) if p == 1 else of(a) ** p for a, p in m if p > 0]
            value = reduce(operator.mul, factors) if factors else 1.0
            for a, p in m:
                value = value / of(a) ** -p if p < 0 else value
            made = value if made is None else made + value
        return made

    with np.errstate(all="ignore"):
        found = [of(r) for r in roots]
    done.clear()  # which closures that call each other would hold until the next collection of garbage
    return found


MEANING: dict[str, Callable[..., Any]] = {
    "lt": lambda x: x < 0, "le": lambda x: x <= 0, "eq": lambda x: x == 0, "not": np.logical_not, "of": lambda x: x,
    "and": np.logical_and, "choose": np.where, **FUNCTIONS,
}  # fmt: skip
BUILT: dict[str, Callable[..., Any]] = {
    "lt": lambda x: less(x, 0), "le": lambda x: less(x, 0, "le"), "eq": lambda x: less(x, 0, "eq"), "not": negate,
    "and": both, "choose": choose, "log": log, "of": lambda x: x,
}  # fmt: skip


def built(op: str, *args: Any) -> Any:
    """What an atom's operator makes of other arguments."""
    return BUILT[op](*args) if op in BUILT else apply(op, *args)


def replaced(roots: Iterable[Any], by: Callable[[Atom], Any]) -> list[Any]:
    """Formulas with some atoms replaced. `by`: what stands for an atom; None: what it is made of is rebuilt."""
    done: dict[int, Any] = {}

    def of(x: Any) -> Any:
        if is_number(x):
            return x
        if x.id not in done:
            done[x.id] = total(x) if isinstance(x, Formula) else rebuilt(x)
        return done[x.id]

    def total(x: Formula) -> Any:
        if all((z := of(y)) is y or (isinstance(y, Atom) and z is single(y)) for y in below(x)):
            return x
        each = ((mul(c, 1 if e is None else exp(of(e))), m) for (m, e), c in x.terms.items())
        return add(*(reduce(mul, [power(of(a), p) for a, p in m], c) for c, m in each))

    def rebuilt(x: Atom) -> Any:
        if (found := by(x)) is not None:
            return found
        if x.op == "var":
            return single(x)
        made = built(x.op, *map(of, x.args))
        if x.op not in ("lt", "le", "eq") or not isinstance(made, Atom) or made is x:
            return made
        found = by(made.args[0] if made.op == "not" else made)
        return made if found is None else negate(found) if made.op == "not" else found

    return [of(r) for r in roots]


def substituted(roots: Iterable[Any], table: Mapping[Atom, Any]) -> list[Any]:
    return replaced(roots, table.get)
