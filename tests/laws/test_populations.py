"""Signs of counts that may be 0."""

import pytest
from hierarchies import quivers
from hierarchies.quivers import batch, expert, group, image, make, text, trajectory, turn

from fibration import count, uniform
from fibration.language.strata import populated
from fibration.language.sympy_bridge import symbol
from fibration.laws.batches.concrete import Concrete
from fibration.laws.batches.shapes import small
from fibration.laws.signs.assumptions import Assumptions
from fibration.laws.signs.populations import Populations


def shape_of(*edges):
    return make(*((a, b, uniform()) for a, b, *_ in edges)).shape


def test_signs_of_counts_in_a_tree():
    shape = shape_of((text, turn), (turn, trajectory), (image, trajectory), (trajectory, group))
    anywhere, on_image = Assumptions(shape), Assumptions(shape, (), image)
    images, words, turns = (symbol(count(s, over=trajectory)) for s in (image, text, turn))
    assert anywhere.signs(images) == {0, 1}
    assert on_image.signs(images) == {1}
    assert on_image.signs(words) == {0, 1}
    assert anywhere.signs(images + words) == {1}, "some token lies over every trajectory"
    assert anywhere.signs(images + turns) == {1}
    assert anywhere.signs(words + turns) == {0, 1}
    assert anywhere.signs(words - turns) == {0, 1}, "every turn has text"
    assert anywhere.signs(words - images) == {-1, 0, 1}
    assert anywhere.signs(symbol(count(text, over=turn))) == {1}
    assert anywhere.signs(symbol(count(text, over=group)) - words) == {0, 1}
    assert anywhere.signs(symbol(count(trajectory, over=group)) - 1) == {0, 1}
    assert anywhere.signs(symbol(count(image, over=group)) - symbol(count(trajectory, over=group))) == {-1, 0, 1}
    assumed = Assumptions(shape, [populated(image, over=trajectory)])
    assert assumed.signs(images) == {1}
    assert assumed.signs(symbol(count(image, over=group)) - symbol(count(trajectory, over=group))) == {0, 1}
    present = anywhere.with_signs({images: frozenset({1})})
    assert present.signs(images - 1) == {0, 1}
    assert present.signs(symbol(count(image, over=group))) == {1}
    absent = anywhere.with_signs({symbol(count(turn, over=trajectory)): frozenset({0})})
    assert absent.signs(words) == {0}
    assert absent.signs(images) == {1}


@pytest.mark.thorough
def test_the_signs_of_counts_are_those_of_all_small_batches():
    for edges, assumed in (
        (((text, turn), (turn, trajectory), (image, trajectory), (trajectory, group)), []),
        (
            ((text, turn), (turn, trajectory), (image, trajectory), (trajectory, group)),
            [populated(turn, over=trajectory)],
        ),
        (quivers.NESTED, []),
        (((text, trajectory), (image, trajectory), (image, expert), (trajectory, batch), (expert, batch)), []),
    ):
        shape = shape_of(*edges)
        made = [Concrete(shape, m) for k in (1, 2, 3) for m in small(shape, k, assumed)]
        known = Populations(shape, assumed)
        pairs = [(a, b) for a in shape.strata for b in (a, *shape.coarser(a))]
        for at in shape.strata:
            here = (at, *shape.coarser(at))
            read = [(a, b) for a, b in pairs if b in here]
            seen = {p: set() for p in read}
            larger = {(p, q): False for p in read for q in read}
            for c in made:
                for e in range(c.size[at]):
                    counts = {(a, b): len(c.over(a, b, c.below(at, e, b))) for a, b in read}
                    for p, value in counts.items():
                        seen[p].add(value)
                    for p, q in larger:
                        larger[p, q] |= counts[p] > counts[q]
            for p in read:
                assert known.always(*p, at) == (0 not in seen[p]), (str(p), str(at))
            for p, q in larger:
                assert not (known.at_most(p, q) and larger[p, q]), (str(p), str(q))
