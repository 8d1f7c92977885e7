"""Idioms of printed bodies: what is written as a minimum, a maximum, |x| or x == y has the value of the choice."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from thorough import examples

from fibration.backends.bodies import IDIOMS, idiom
from fibration.backends.triton.language import TOKEN, WIDE
from fibration.compiler import interpret
from fibration.compiler.ir import arg, const, scalar
from fibration.compiler.rules import simplify

X, Y, ZERO, MINUS = arg(0), arg(1), const(0.0), scalar("neg", arg(0))
MEANING = {**interpret.MEANING, "minimum": np.minimum, "maximum": np.maximum, "abs": np.abs, "equal": np.equal}
NUMBERS = np.array([*itertools.product([-2.0, -1.0, 0.0, 1.0, math.inf], repeat=3)]).T  # of three arguments


def choice(op, a, b, turned, opposite):
    """A choice of a and b, or one of their opposites, by their order: most are an idiom, or nearly one."""
    found = (b, a) if turned else (a, b)
    return scalar("select", scalar(op, a, b), found[0], scalar("neg", found[0]) if opposite else found[1])


def outside(op, x, low, high, symmetric):
    bounds = scalar("neg", high) if symmetric else low
    return scalar("select", scalar("or", scalar(op, x, bounds), scalar(op, high, x)), ZERO, x)


numbers = st.recursive(
    st.sampled_from([X, Y, arg(2), ZERO, const(1.0), const(-1.0)]),
    lambda parts: (
        st.builds(lambda a: scalar("neg", a), parts)
        | st.builds(lambda a, b: scalar("sub", a, b), parts, parts)
        | st.builds(choice, st.sampled_from(("lt", "le")), parts, parts, st.booleans(), st.booleans())
        | st.builds(outside, st.sampled_from(("lt", "le")), parts, parts, parts, st.booleans())
    ),
    max_leaves=8,
)


def value(s):
    """At all numbers at once."""
    if not s.args:
        return NUMBERS[s.value] if s.op == "arg" else np.full(NUMBERS.shape[1], s.value)
    return np.asarray(MEANING[s.op](*map(value, s.args)))


@examples(400)
@given(numbers)
@example(choice("le", ZERO, scalar("sub", X, Y), True, False))
@example(scalar("select", scalar("le", ZERO, scalar("sub", X, Y)), scalar("sub", X, Y), scalar("sub", X, ZERO)))
def test_an_idiom_has_the_value_of_what_it_stands_for(body):
    with np.errstate(all="ignore"):
        for written in (body, simplify(body)):
            nan = np.any([np.isnan(value(part).astype(float)) for part in _parts(written)], axis=0)
            made, meant = value(idiom(written, IDIOMS)), value(written)
            assert (made == meant)[~nan].all()


def _parts(s):
    return [s, *(p for a in s.args for p in _parts(a))]


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (scalar("select", scalar("le", X, Y), X, Y), "tl.minimum(x, y)"),
        (scalar("select", scalar("lt", X, Y), Y, X), "tl.maximum(x, y)"),
        (scalar("select", scalar("le", ZERO, X), X, MINUS), "tl.abs(x)"),
        (scalar("select", scalar("le", ZERO, X), X, ZERO), "tl.maximum(tl.full([], 0.0, REAL), x)"),
        (scalar("select", scalar("le", ZERO, X), ZERO, MINUS), "tl.maximum(-1.0 * x, tl.full([], 0.0, REAL))"),
        (scalar("or", scalar("lt", X, scalar("neg", Y)), scalar("lt", Y, X)), "y < tl.abs(x)"),
        (scalar("and", scalar("le", X, Y), scalar("le", Y, X)), "x == y"),
    ],
)
def test_what_is_written(written, text):
    assert TOKEN.write(written, ["x", "y"], "z", set()) == ([], text)


def test_float64_numbers_have_no_minimum():
    """It takes a GPU more instructions than a choice does."""
    assert WIDE.write(scalar("select", scalar("le", X, Y), X, Y), ["x", "y"], "z", set()) == (
        [],
        "tl.where(x <= y, x, y)",
    )
