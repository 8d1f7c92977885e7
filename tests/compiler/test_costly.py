"""Costly functions in both branches of a choice, of coarse values and of tokens."""

import pytest
from oracles.programs import program

from fibration.compiler.costly import shared
from fibration.compiler.ir import Input, Map, Pull, arg, const, count_input, scalar

COUNT = count_input("fine", "coarse")
VALUE, OTHER = (Input(word, "coarse", "parameter", (word,)) for word in ("value", "other"))
DIVIDED = scalar("div", arg(0), arg(1))
POSITIVE = scalar("le", const(0.0), arg(0))
LOGARITHMS = [scalar("log1p", arg(i)) for i in (0, 1)]


def body_of(body, *inputs):
    """The body that a map has afterwards."""
    (made,) = shared(program(value=Map(body, inputs))).outputs.values()
    return made.body


@pytest.mark.parametrize(
    "made",
    [
        (DIVIDED, VALUE, COUNT),  # a mean of ones is 1
        (scalar("select", POSITIVE, LOGARITHMS[0], LOGARITHMS[0]), VALUE),
        (scalar("select", POSITIVE, LOGARITHMS[0], scalar("log", arg(1))), VALUE, OTHER),
        (scalar("select", POSITIVE, scalar("neg", arg(0)), scalar("neg", arg(1))), VALUE, OTHER),
    ],
)
def test_other_values_stay(made):
    assert body_of(*made) is made[0]


def test_a_costly_function_of_both_branches_is_taken_once():
    a, b = LOGARITHMS
    branches = scalar("mul", a, arg(0)), scalar("sub", b, arg(1))
    one = scalar("log1p", scalar("select", POSITIVE, arg(0), arg(1)))
    wanted = scalar("select", POSITIVE, scalar("mul", one, arg(0)), scalar("sub", one, arg(1)))
    assert body_of(scalar("select", POSITIVE, *branches), VALUE, OTHER) is wanted


def test_tokens_keep_what_a_loop_takes_once():
    """The arguments of both branches may be the same for all tokens; their choice is not."""
    tokens = [Pull("fine", "coarse", x) for x in (VALUE, OTHER)]
    body = scalar("select", POSITIVE, *LOGARITHMS)
    assert body_of(body, *tokens) is body
