"""Kernels sum to 1 over a fibre, whichever of its branches are empty; and the smallest fibre that refutes it."""

import pytest
from hierarchies import quivers, zoo
from hierarchies.measures import CHAIN, linear_kernels, over
from hierarchies.quivers import (
    group,
    image,
    make,
    mine,
    n,
    text,
    trajectory,
)
from hypothesis import given
from hypothesis import strategies as st
from oracles import on_batches, verdicts
from oracles.verdicts import WRONG, check, status
from thorough import examples

from fibration import (
    Stratum,
    count,
    uniform,
    where,
)
from fibration.laws import reflecting as kernels


def test_counterexamples_are_small():
    """The first hierarchy that shows the fault is given, not just any."""
    smallest = {
        "one too many in the denominator": 1,
        "polynomial vanishing at 1 to 5": 6,
        "polynomial vanishing at 1 to 8": 9,
    }
    for name, tokens in smallest.items():
        verdict = next(
            v for v in WRONG[name].hierarchy.verify().verdicts if v.law == "reflecting" and v.status == "refuted"
        )
        assert verdict.counterexample.concrete.size[zoo.token] == tokens


@pytest.mark.parametrize(("divides", "status"), [(image, "proved"), (text, "refuted")])
def test_a_kernel_may_divide_by_what_is_there(divides, status):
    """The count of images is not 0 at an image: a weight that divides by it has a value there, and not at a text."""
    kernels = {s: quivers.BOTH * (n(image) / n(image)) if s == divides else quivers.BOTH for s in (text, image)}
    found = mine(make(*((s, trajectory, k) for s, k in kernels.items()), (trajectory, group, uniform())))
    said = {(v.law, v.subject): v.status for v in found}
    assert said["markov", f"kernel {divides} → trajectory"] == status
    assert said["reflecting", "kernels text_token, image_token → trajectory"] == status


def kinds_of_token(how_many, by_cases=False):
    """A tree of so many branches, any of which may be empty; all kernels are 1 / the count of tokens."""
    leaves = [Stratum(f"kind_{i}") for i in range(how_many)]
    tokens = sum((n(leaf) for leaf in leaves[1:]), n(leaves[0]))
    kernel = where(n(leaves[0]) < 3, 2 / (tokens + tokens), 1 / tokens) if by_cases else 1 / tokens
    return make(*((leaf, trajectory, kernel) for leaf in leaves), (trajectory, group, uniform()))


def test_many_branches_take_one_identity():
    """Not one for each of the 1023 sets of branches that hold something."""
    (joint,) = (v for v in mine(kinds_of_token(10)) if v.subject.startswith("kernels kind_0, kind_1"))
    assert joint.status == "proved"
    assert joint.argument.count("= 1") == 1


def test_cases_of_empty_branches(monkeypatch):
    """A kernel with branches of its own takes a case for each set of empty ones, up to a number of them."""
    hierarchy = kinds_of_token(3, by_cases=True)

    def joint():
        return next(v for v in mine(hierarchy) if v.subject == "kernels kind_0, kind_1, kind_2 → trajectory")

    assert joint().status == "proved"
    assert "without kind_0 and kind_2: Σ over kind_1" in joint().argument
    monkeypatch.setattr(kernels, "MANY", 2)
    assert joint().status == "undecided"
    assert "more than 2 branches that may be empty" in joint().found
    assert "populated" in joint().remedy


@verdicts.wrong_specs("reflecting")
def test_wrong_specs_are_refused(name):
    verdicts.refused(name)


@on_batches.wrong_quivers("reflecting")
def test_wrong_quivers_are_refused(name):
    on_batches.refused(name)


@examples(40)
@given(st.integers(0, 2).flatmap(lambda i: st.tuples(st.just(i), linear_kernels(CHAIN[i], CHAIN[i + 1]))))
def test_kernels_linear_in_measures_are_decided_completely(drawn):
    level, (value, adds_up_to, coefficients) = drawn
    source, target = CHAIN[level], CHAIN[level + 1]
    levels = CHAIN[: level + 2]
    kernels = [1 / count(a, over=b) for a, b in zip(levels[:-2], levels[1:-1], strict=True)]
    found = check(over(levels, [*kernels, value]), sizes=(1, 2, 3, 4))
    what = f"kernel {source} → {target}"
    assert status(found, "reflecting", what) == ("proved" if adds_up_to == 1 else "refuted")
    if all(c >= 0 for c in coefficients):
        assert status(found, "markov", what) == "proved"
