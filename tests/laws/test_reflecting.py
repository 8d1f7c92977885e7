"""Kernels sum to 1 over a fibre, whichever branches are empty. The counterexample is the smallest fibre."""

import re
from fractions import Fraction

import pytest
from hierarchies import builders, first_order_specs, quivers, random_chains, random_quivers, right, wrong_specs
from hierarchies.quivers import (
    group,
    image,
    make,
    mine,
    n,
    text,
    trajectory,
)
from oracles import quiver_verdicts, verdicts
from oracles.certified_facts import decided
from oracles.verdicts import WRONG

import fibration
from fibration import (
    Stratum,
    load,
    populated,
    uniform,
    where,
)
from fibration.language.expressions import as_expression
from fibration.laws import LAWS
from fibration.laws.kernels import reflecting as kernels
from fibration.laws.law import Decision, Proved
from fibration.laws.subject import Subject


@pytest.mark.thorough
def test_the_counterexample_is_the_smallest_hierarchy():
    """The report has the first hierarchy that shows the fault."""
    smallest = {
        "one too many in the denominator": 1,
        "polynomial vanishing at 1 to 5": 6,
        "polynomial vanishing at 1 to 8": 9,
    }
    for name, tokens in smallest.items():
        verdict = next(
            v for v in decided(WRONG[name].hierarchy, "reflecting") if v.status == "refuted"
        )
        assert verdict.counterexample.concrete.size[builders.token] == tokens


@pytest.mark.parametrize(("divides", "status"), [(image, "proved"), (text, "refuted")])
def test_a_kernel_may_divide_by_the_count_of_its_own_branch(divides, status):
    """The count of images is not 0 at an image. At a text a weight that divides by it has no value."""
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


def test_many_branches_are_proved_by_one_identity():
    """There is no case for each of the 1023 sets of populated branches."""
    (joint,) = (v for v in mine(kinds_of_token(10)) if v.subject.startswith("kernels kind_0, kind_1"))
    assert joint.status == "proved"
    assert joint.argument.count("= 1") == 1


@pytest.mark.thorough
def test_a_kernel_with_branches_is_proved_for_each_set_of_empty_branches(monkeypatch):
    """The number of such cases is limited."""
    hierarchy = kinds_of_token(3, by_cases=True)

    def joint():
        return next(v for v in mine(hierarchy) if v.subject == "kernels kind_0, kind_1, kind_2 → trajectory")

    assert joint().status == "proved"
    assert "without kind_0 and kind_2: Σ over kind_1" in joint().argument
    monkeypatch.setattr(kernels, "MANY", 2)
    assert joint().status == "undecided"
    assert "more than 2 branches that may be empty" in joint().found
    assert "populated" in joint().remedy


def everywhere():
    """Every hierarchy of the tests whose structure is right."""
    found = [load(name) for name in right.SHIPPED] + list(right.RIGHT.values())
    found += [
        w.hierarchy
        for kind in (wrong_specs.wrong(), wrong_specs.undecidable(), quivers.right(), quivers.wrong())
        for w in kind.values()
    ]
    found += [s.h for s in first_order_specs.SPECS.values()]
    found += [random_chains.chain(seed) for seed in range(20)]
    found += [random_quivers.quiver(seed) for seed in range(random_quivers.COUNT)]
    found += [random_quivers.plain(kind) for kind in random_quivers.KINDS]
    return [h for h in found if next(LAWS["structure"].decide(Subject(h, []))).status == "proved"]


def test_every_kernel_has_a_verdict(monkeypatch):
    """Every fibration of every hierarchy is in some verdict, also those in no cover."""
    monkeypatch.setattr(kernels, "sums_to_1", lambda *_: Proved("as if"))
    monkeypatch.setattr(kernels, "decide_share", lambda f, *_: Decision(f"kernel {f.name}", "proved"))
    alone = 0
    for h in everywhere():
        quiver_verdicts.every_kernel_is_asked(h, list(LAWS["reflecting"].decide(Subject(h, []))))
        alone += len(h.shape.uncovered())
    assert alone >= 10


@pytest.mark.parametrize(
    "h", [random_quivers.plain(random_quivers.PARTIAL), random_quivers.quiver(27)], ids=lambda h: h.name
)
def test_the_weights_over_a_part_of_the_tokens_sum_to_its_share(h):
    found = h.verify()
    assert found.ok, found
    (part,) = (v for v in found.verdicts if v.law == "reflecting" and v.subject == "kernel expert → batch")
    assert part.argument.endswith("the share of image by way of trajectory")


def test_a_part_of_a_wrong_cover_has_the_cover_as_its_cause():
    """If a cover does not sum to 1, its part follows from it. A part that is wrong itself has no cause."""
    found = {v.subject: v for v in quivers.wrong()["a part of what does not sum to 1"].hierarchy.verify().failures}
    assert found["kernel expert → batch"].cause == ("reflecting", "kernels text_token, image_token → trajectory")
    alone = quivers.parted(uniform()).verify()
    assert [(v.law, v.subject, v.cause) for v in alone.causes] == [("reflecting", "kernel expert → batch", None)]
    assert alone.so_too(alone.causes[0]) == "coherent"


def test_the_remedy_contains_the_weight_of_the_part():
    """The weight that the remedy names is accepted."""
    wrong = quivers.parted(uniform())
    (said,) = (v.remedy for v in wrong.verify().causes)
    names = vars(fibration) | {s.name: s for s in wrong.strata}
    written = eval(said.removeprefix("write ").partition(", the share ")[0], names)
    assert quivers.parted(written.kernel).verify().ok


@pytest.mark.sampled
@verdicts.wrong_specs("reflecting")
def test_wrong_specs_are_refused(name):
    verdicts.refused(name)


@pytest.mark.sampled
@quiver_verdicts.wrong_quivers("reflecting")
def test_wrong_quivers_are_refused(name):
    quiver_verdicts.refused(name)


def test_the_remedy_for_a_rounded_decimal_names_the_fraction():
    kinds = [Stratum(f"kind_{i}") for i in range(3)]
    assume = [populated(k, over=trajectory) for k in kinds]

    def each(part):
        return make(*((k, trajectory, uniform(share=as_expression(part))) for k in kinds), assume=assume).verify()

    (cause,) = each(1 / 3).causes
    assert cause.remedy.startswith("write Fraction(1, 3) for 0.3333333333333333, ")
    assert each(Fraction(1, 3)).ok
    for other in (0.3, 1 / 6):  # such fractions would not sum to 1 either
        assert "Fraction" not in each(other).causes[0].remedy


def test_an_argument_in_steps_shows_the_sum_and_not_the_weight():
    h = quivers.right()["shortcut, uniform in steps"].hierarchy
    found = [v.argument for v in decided(h, "reflecting")]
    assert any(re.fullmatch(r"Σ over token of 1/\(.*\) = 1", text) for text in found), found
    assert not [text for text in found if re.search(r"of (.*) = \1 = 1$", text)]
