"""Signs of polynomials in one variable, against their values."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st
from thorough import examples

from fibration.laws.signs.one_variable import allowed, at, sign, signs_above_0, signs_at, stretches

small = st.integers(-6, 6)


def product(roots, lead):
    """A polynomial with these rational roots, whose linear factors are multiplied out."""
    p = [lead]
    for root in roots:
        a, b = -Fraction(root).numerator, Fraction(root).denominator
        p = [a * c + b * d for c, d in zip([*p, 0], [0, *p], strict=True)]
    return tuple(p)


@st.composite
def polynomials(draw):
    """With rational roots, perhaps raised a little, so that they touch 0, cross it or just miss it; or any."""
    if draw(st.booleans()):
        p = [draw(small) for _ in range(draw(st.integers(1, 5)))]
        return (*p, draw(small.filter(bool)))
    roots = draw(st.lists(st.sampled_from([Fraction(n, 2) for n in range(-3, 40)]), max_size=5))
    p = product(roots, draw(st.sampled_from([1, -1, 3])))
    return (p[0] + draw(st.sampled_from([0, 0, 1, -1])), *p[1:]) if len(p) > 1 else p


@examples(150)
@given(polynomials(), st.integers(0, 5))
def test_stretches_equal_the_signs_at_every_whole_number(p, least):
    found = stretches(p, least)
    for ((_, last), s), ((first, _), t) in zip(found, found[1:], strict=False):
        assert first == last + 1
        assert s != t
    assert found[0][0][0] == least
    assert found[-1][0][1] is None
    for n in [*range(least, 60), 10**6, 10**20]:
        [s] = {s for (first, last), s in found if first <= n and (last is None or n <= last)}
        assert s == sign(at(p, n))


@examples(100)
@given(polynomials(), polynomials(), st.sampled_from([{1}, {0, 1}, {-1}, {-1, 0}, {0}, {-1, 1}]))
def test_the_signs_under_a_condition_are_those_of_the_values(p, q, signs):
    numbers = allowed(1, [(q, frozenset(signs))])
    far = [*range(1, 400), 10**9, 10**12]
    expected = {sign(at(p, n)) for n in far if sign(at(q, n)) in signs}
    assert bool(numbers) == any(sign(at(q, n)) in signs for n in far)
    if numbers:
        assert signs_at(p, numbers) == expected


@examples(150)
@given(polynomials())
def test_the_signs_above_0_are_those_of_the_values(p):
    found = signs_above_0(p)
    # roots of such polynomials are apart by more than this, or at a multiple of it
    points = [Fraction(n, 8) for n in range(1, 8 * 45)] + [Fraction(1, 10**9), Fraction(10**9)]
    values = {sign(sum(c * t**k for k, c in enumerate(p))) for t in points}
    assert values <= found
    if 0 not in found:
        assert values == found


def test_signs_of_polynomials_with_roots_between_whole_numbers():
    assert signs_at((12, -7, 1), [(1, None)]) == {0, 1}  # (n - 3)(n - 4)
    assert signs_at((15, -8, 1), [(1, None)]) == {-1, 0, 1}  # (n - 3)(n - 5) is below 0 at 4
    assert signs_at((15, -8, 1), [(1, 3), (5, None)]) == {0, 1}
    assert signs_at((15, -11, 2), [(1, None)]) == {0, 1}  # (2n - 5)(n - 3), below 0 between 2.5 and 3
    assert signs_at((-(10**40), 1), [(1, None)]) == {-1, 0, 1}
    assert signs_above_0((5, -4, 1)) == {1}
    assert signs_above_0((4, -4, 1)) == {0, 1}
    assert signs_above_0((3, -4, 1)) == {-1, 0, 1}
    assert signs_above_0((0, 0, 1)) == {1}
    assert signs_above_0((0, -1)) == {-1}
