"""Signs of expressions contain those of all small batches. Decided signs stay decided."""

import itertools
import random
from fractions import Fraction

import pytest
import sympy
from hierarchies.quivers import group, image, make, text, trajectory, turn

from fibration import Attribute, Parameter, count, density, residual, strata, total, uniform
from fibration.language.operators import ANY
from fibration.language.strata import Shape, populated
from fibration.language.sympy_bridge import symbol, to_sympy
from fibration.laws.batches.concrete import Concrete
from fibration.laws.batches.shapes import small
from fibration.laws.signs import assumptions as module
from fibration.laws.signs.assumptions import Assumptions
from fibration.laws.signs.feasible import feasible, normal

EDGES = ((text, turn), (turn, trajectory), (image, trajectory), (trajectory, group))
TREE = make(*((a, b, uniform()) for a, b in EDGES)).shape
LEVELS = strata(" ".join(f"level{i}" for i in range(24)))
CHAIN = make(*((a, b, uniform()) for a, b in itertools.pairwise(LEVELS))).shape
EPSILON, SHARE, ANYTHING = Parameter("epsilon"), Parameter("share", upper=1), Parameter("anything", lower=None)
DIFFICULTY = Attribute("difficulty", on=trajectory)
COUNTS = [count(a, over=b) for a in (text, turn, image, trajectory) for b in (turn, trajectory, group)]
COUNTS = [c for c in COUNTS if c.over in TREE.coarser(c.of)]


def formulas(rng):
    """Sums of products of few atoms, some divided by one more."""
    atoms = [symbol(a) for a in (*COUNTS, EPSILON, SHARE, ANYTHING, DIFFICULTY)]
    chosen = rng.sample(atoms, 4)

    def term():
        return rng.choice([-3, -2, -1, 1, 1, 2]) * sympy.Mul(*rng.sample([*chosen, 1, 1], rng.randint(1, 3)))

    value = sum(term() for _ in range(rng.randint(1, 3))) + rng.choice([-1, 0, 0, 1])
    return value * term() if rng.random() < 0.3 else value / (1 + chosen[0] ** 2) if rng.random() < 0.3 else value


def settings(concrete, at, rng):
    """Values of every atom at each element of a stratum."""
    for e in range(concrete.size[at]):
        values = {symbol(c): len(concrete.over(c.of, c.over, concrete.below(at, e, c.over))) for c in COUNTS
                  if c.over in (at, *TREE.coarser(at))}  # fmt: skip
        for parameter, options in ((EPSILON, (1, 9, 1000)), (SHARE, (1, 5, 9)), (ANYTHING, (-90, -2, 0, 2, 9))):
            values[symbol(parameter)] = sympy.Rational(rng.choice(options), 10)
        yield values | {symbol(DIFFICULTY): sympy.Rational(rng.randint(1, 30), 10)}


@pytest.mark.parametrize("assumed", [(), (populated(image, over=trajectory),)], ids=["", "populated"])
def test_signs_contain_the_signs_of_values(assumed):
    """This holds alone, and under an assumed sign of another expression."""
    rng = random.Random(7)
    batches = [Concrete(TREE, m) for k in (1, 2, 3) for m in small(TREE, k, assumed)]
    for at in (text, image, turn, trajectory):
        known = Assumptions(TREE, assumed, at)
        samples = [v for c in rng.sample(batches, min(25, len(batches))) for v in settings(c, at, rng)]
        for _ in range(12):
            while not (value := formulas(rng)).free_symbols <= samples[0].keys():
                pass
            while not (other := formulas(rng)).free_symbols <= samples[0].keys():
                pass
            for more in (value + 1, value * other, value + other):
                seen = {}
                for v in samples:
                    here = [int(sympy.sign(x.xreplace(v))) for x in (other, more)]
                    seen.setdefault(here[0], set()).add(here[1])
                assert set().union(*seen.values()) <= known.signs(more), more
                for sign, found in seen.items():
                    inside = known.with_signs({other: frozenset({sign})})
                    assert found <= inside.signs(more), (more, other, sign)


def chain_counts(n):
    return [symbol(count(a, over=b)) for a, b in itertools.islice(itertools.pairwise(LEVELS), n)]


@pytest.mark.parametrize("depth", [3, 23])
def test_products_of_counts_are_at_least_1(depth):
    """Multiplied out, every shift of a product of counts would double its terms."""
    product = sympy.Mul(*chain_counts(depth))
    known = Assumptions(CHAIN)
    epsilon, anything = symbol(EPSILON), symbol(ANYTHING)
    assert known.signs(product - 1) == {0, 1}
    assert known.signs(1 / product - 1) == {-1, 0}
    assert known.signs(product * epsilon) == {1}
    assert known.signs(epsilon - 2 * product * epsilon) == {-1}
    assert known.signs(epsilon / product - epsilon) == {-1, 0}
    assert known.signs(product * epsilon - 1) == ANY
    assert known.signs(product * anything - anything) == ANY
    assert known.with_signs({anything: frozenset({1})}).signs(product * anything - anything) == {0, 1}
    whole = symbol(count(LEVELS[0], over=LEVELS[depth]))
    assert known.signs(whole - symbol(count(LEVELS[1], over=LEVELS[depth]))) == {0, 1}
    assert known.signs(symbol(count(LEVELS[0], over=LEVELS[1])) - 2 * whole) == {-1}


def test_the_sum_of_counts_of_all_branches_is_positive():
    leaves = strata(" ".join(f"leaf{i}" for i in range(12)))
    shape = make(*((leaf, trajectory, uniform()) for leaf in leaves)).shape
    known, counts = Assumptions(shape), [symbol(count(leaf, over=trajectory)) for leaf in leaves]
    some, all_ = sum(counts[:-1]), sum(counts)
    assert (known.signs(all_), known.signs(some)) == ({1}, {0, 1})
    assert known.signs(all_ - 1) == {0, 1}
    assert known.signs(1 / all_ - 1) == {-1, 0}
    assert known.signs(1 / some) == ANY, "it may be a division by 0"
    assert known.signs(sum(c**2 for c in counts)) == {1}
    assert known.with_signs({counts[-1]: frozenset({0})}).signs(some) == {1}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (SHARE - 1, {-1}),
        ((SHARE - 1) * (SHARE + 1), {-1}),
        (SHARE * SHARE - SHARE, {-1}),
        (ANYTHING * ANYTHING, {0, 1}),
        (ANYTHING * ANYTHING + EPSILON, {1}),
        (1 / (ANYTHING * ANYTHING), ANY),
        (SHARE - Fraction(1, 2), ANY),
        (total(DIFFICULTY, over=group) * EPSILON, {1}),
        (-DIFFICULTY, {-1}),
    ],
)
def test_signs_use_declared_bounds(value, expected):
    assert Assumptions(TREE).signs(to_sympy(value)) == expected


def test_signs_of_functions():
    x = symbol(residual)
    known = Assumptions(TREE)
    above = known.with_signs({x: frozenset({1})})
    assert known.signs(1 - sympy.tanh(x)) == {1}
    assert known.signs(sympy.pi / 2 + sympy.atan(x)) == {1}
    assert known.signs(sympy.atan(x) - 2) == {-1}
    assert known.signs(sympy.atan(x) - sympy.Rational(3, 2)) == ANY
    assert known.signs(sympy.exp(x) - 1) == ANY
    assert above.signs(sympy.exp(x) - 1) == {1}
    assert above.signs(sympy.exp(-x) - 1) == {-1}
    assert known.with_signs({x: frozenset({-1, 0})}).signs(sympy.exp(x) - 1) == {-1, 0}
    assert above.signs(1 - sympy.tanh(x) ** 2) == {1}
    assert above.signs(sympy.sqrt(x) - x) == ANY
    assert known.signs(sympy.sqrt(2) - 1) == {1}
    assert known.signs(symbol(EPSILON) * sympy.sqrt(2) - symbol(EPSILON)) == {1}
    assert known.signs(sympy.log(1 + sympy.exp(x))) == {1}


def test_a_known_sign_of_an_expression_gives_signs_of_its_multiples_and_factors():
    """Nothing is known about a denominator: it may be 0."""
    x, y, n = symbol(residual), symbol(density(group)), symbol(count(text, over=turn))
    positive = frozenset({1})
    known = Assumptions(TREE).with_signs({(x - y) / n: positive})
    assert known.signs(2 * x - 2 * y) == {1}
    assert known.signs(n * (y - x) - n) == {-1}
    assert known.signs(y - x + 1) == ANY
    assert known.with_signs({x - 3: frozenset({-1, 0})}).signs(x - 4) == {-1}
    assert 0 in Assumptions(TREE).with_signs({1 / (n - 1): positive}).signs(n - 1)
    squared = Assumptions(TREE).with_signs({x * x: positive})
    assert squared.signs(x) == {-1, 1}
    assert Assumptions(TREE).with_signs({x * y: positive}).signs(-3 * x * y) == {-1}


def test_adding_terms_of_one_sign_keeps_a_known_sign():
    """`x - n > 0` gives `x > n`. `x - n < 0` gives nothing for `x`."""
    x, y, n = symbol(residual), symbol(density(group)), symbol(count(text, over=turn))
    above = Assumptions(TREE).with_signs({x - y - n: frozenset({1})})
    assert above.signs(x - y) == {1}
    assert above.signs(2 * x - 2 * y + n) == {1}
    assert above.signs(y - x) == {-1}
    assert above.signs(x - y - 2 * n) == ANY
    assert above.signs(x) == ANY
    assert Assumptions(TREE).with_signs({x - y - n: frozenset({-1})}).signs(x - y) == ANY
    at_least = Assumptions(TREE).with_signs({x - n: frozenset({0, 1})})
    assert at_least.signs(x) == {1}


def test_signs_that_take_too_many_steps_are_unknown(monkeypatch):
    product = sympy.Mul(*chain_counts(5))
    monkeypatch.setattr(module, "MOST_STEPS", 3)
    assert Assumptions(CHAIN).signs(product - 1) == ANY


def test_signs_of_too_high_powers_are_unknown():
    x = symbol(residual)
    above = Assumptions(TREE).with_signs({x: frozenset({1})})
    assert above.signs(sympy.exp(100 * x) - 1) == {1}
    assert above.signs(sympy.exp(100_000 * x) - 1) == ANY


def test_a_comparison_without_its_known_factors_has_the_same_sign():
    """Factors of known sign are dropped. A negative one turns the comparison."""
    x, n, share = symbol(residual), symbol(count(text, over=turn)), symbol(SHARE)
    known = Assumptions(TREE)
    for value in (n * (x - share), (share - 1) * (x - share) / n, -x / 3, (x - 1) * (n - 2)):
        sign, left = known.decisive(value)
        for s in (-1, 0, 1):
            assert known.with_signs({value: frozenset({s})}).signs(sign * left) == {s}
    assert known.decisive(n * (share - 1)) == (-1, 1)
    assert not known.decisive((share - 1) * (x - share) / n)[1].has(n)


# ---------------------------------------------------------------- conditions that contradict each other

C = symbol(Parameter("C"))
POSITIVE, NEGATIVE = frozenset({1}), frozenset({-1})


@pytest.mark.parametrize(
    ("difference", "possible", "impossible"),
    [
        (C - C, [frozenset({0}), frozenset({0, 1})], [POSITIVE, NEGATIVE]),
        (0 * C, [frozenset({0}), frozenset({0, 1})], [POSITIVE, NEGATIVE]),
        (C / C, [POSITIVE], [NEGATIVE]),
        (-3 * C / C, [NEGATIVE], [frozenset({0, 1})]),
    ],
)
def test_a_formula_that_simplifies_to_a_number_has_only_its_sign(difference, possible, impossible):
    known = Assumptions(Shape((), ()))
    for signs in (*possible, *impossible):
        assert feasible(dict([normal(difference, signs, known)]), known) is (signs in possible)
