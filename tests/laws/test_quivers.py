"""The laws of trees and quivers: right ones are proved, wrong ones refused in the words that a user needs.

What is proved holds on random batches, and every counterexample is one, when both are worked out in rationals without
the library's procedures (`quivers.Tokens`).
"""

import functools
import itertools
import random
from fractions import Fraction

import pytest
from hierarchies import quivers
from hierarchies.quivers import (
    MINE,
    batch,
    domain,
    image,
    make,
    mine,
    modality,
    n,
    reaches,
    text,
    token,
    trajectory,
    turn,
)

from fibration import (
    Fibration,
    count,
    uniform,
)
from fibration.language.assumptions import balanced, populated
from fibration.language.exact import NoValue
from fibration.language.report import Verdict
from fibration.language.strata import Shape

RIGHT, WRONG = quivers.right(), quivers.wrong()
F = Fraction


@functools.cache
def verdicts(name):
    return mine({**RIGHT, **WRONG}[name].hierarchy)


def shown(verdict):
    return f"{verdict.error('q')} {verdict.counterexample}"


# ---------------------------------------------------------------- what is said


@pytest.mark.parametrize("name", RIGHT)
def test_right_ones_are_proved(name):
    found = verdicts(name)
    assert {v.status for v in found} == {"proved"}, [shown(v) for v in found if v.status != "proved"]
    laws = {v.law for v in found}
    assert laws == set(MINE) - ({"coherent"} if RIGHT[name].hierarchy.shape.is_tree else set())
    assert all(v.argument for v in found)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_ones_are_refused_in_words(name):
    case, found = WRONG[name], verdicts(name)
    verdict = next((v for v in found if (v.law, v.subject) == (case.law, case.subject)), None)
    assert verdict is not None, [str(v) for v in found]
    assert verdict.status == case.status, shown(verdict)
    said = " ".join(str(verdict.error("q")).split()) + f" {verdict.counterexample}"
    for words in case.words:
        assert words in said, said
    assert verdict.remedy
    assert verdict.required
    earlier = MINE[: MINE.index(case.law)]
    assert all(v.status == "proved" for v in found if v.law in earlier), "refused by an earlier law"


@pytest.mark.parametrize("name", [k for k, c in WRONG.items() if c.law not in ("structure", "locality")])
def test_every_refutation_has_a_witness(name):
    for v in verdicts(name):
        if v.status == "refuted" and v.subject != "hierarchy":
            assert v.counterexample is not None, v


def test_the_collection_is_large_and_varied():
    assert len(RIGHT) + len(WRONG) >= 50
    assert {c.law for c in WRONG.values()} == set(MINE)
    shapes = [c.hierarchy.shape for c in (*RIGHT.values(), *WRONG.values())]
    assert sum(s.is_tree for s in shapes if s.strata) >= 15
    assert sum(not s.is_tree for s in shapes) >= 20


def test_arguments_can_be_followed():
    said = {(v.law, v.subject): v.argument for v in verdicts("crossing, balanced")}
    assert said["structure", "hierarchy"].endswith("paths from trajectory to batch agree, into the batch: one element")
    assert said["orthogonality", "residual on trajectory"].startswith(
        "P_domain(s - s_domain - s_modality + s_batch) = P_domain - P_domain - P_batch + P_batch = 0 "
        "(P_domain P_modality = P_batch by balanced(domain, modality))"
    )
    assert "m(domain) = count(token, over=domain)" in said["coherent", "hierarchy"]
    short = {(v.law, v.subject): v.argument for v in verdicts("shortcut, by counts")}
    assert "paths from token to trajectory agree, checked on every index" in short["structure", "hierarchy"]
    tree = {(v.law, v.subject): v.argument for v in verdicts("tree of one measure")}
    joint = tree["reflecting", "kernels text_token, image_token → trajectory"]
    assert joint.endswith(" = 1, also where a branch is empty: its term is 0")
    assert tree["orthogonality", "residual on text_token"].endswith("summed over text_token and image_token together")


def test_trees_have_no_verdict_on_coherence():
    assert not [v for v in verdicts("tree of one measure") if v.law == "coherent"]


# ---------------------------------------------------------------- what is proved, by brute force


def covers_by_hand(h, target):
    """Smallest sets of fibrations into `target` that part its leaves."""
    leaves = [s for s in h.strata if not any(f.target == s for f in h.fibrations)]
    into = [f for f in h.fibrations if f.target == target]
    for size in range(1, len(into) + 1):
        for chosen in itertools.combinations(into, size):
            times = [sum(reaches(h, leaf, f.source) for f in chosen) for leaf in leaves if reaches(h, leaf, target)]
            if all(t == 1 for t in times):
                yield chosen


def kernels_named(h, verdict):
    """The fibrations that a verdict on reflecting speaks of."""
    sources, _, target = verdict.subject.partition(" ")[2].partition(" → ")
    names = sources.split(", ")
    return [f for f in h.fibrations if f.source.name in names and f.target.name == target]


def over(h, leaf_strata, s):
    return {leaf for leaf in leaf_strata if reaches(h, leaf, s)}


def sums_of_residuals(h, v):
    """`(members, u)` such that the residuals of `members` together must sum to 0 over each element of `u`."""
    leaves = [s for s in h.strata if not any(f.target == s for f in h.fibrations)]
    for u in h.strata:
        if u == v or not reaches(h, v, u):
            continue
        if over(h, leaves, u) == over(h, leaves, v):
            yield [v], u
        for cover in covers_by_hand(h, u):
            if v in [f.source for f in cover]:
                yield [f.source for f in cover], u


def uphold(h, found, made, rng):
    """Everything that is proved, on one batch."""
    for v in found:
        if v.status != "proved":
            continue
        if v.law == "markov":
            f = next(f for f in h.fibrations if v.subject == f"kernel {f.name}")
            assert all(made.weight(f, i) >= 0 for i in made.label[f.source])
        if v.law == "reflecting":
            fs = kernels_named(h, v)
            assert fs
            assert all(made.fibre_sum(fs, b) == 1 for b in made.elements(fs[0].target)), v.subject
        if v.law == "coherent":
            roots = [s for s in h.strata if not any(f.source == s for f in h.fibrations)]
            if len(roots) == 1:
                assert all(len(made.products(s, roots[0], i)) == 1 for i, s in enumerate(made.leaf))
        if v.law == "orthogonality" and h.orthogonalise is None:
            s = next(s for s in h.strata if v.subject == f"residual on {s}")
            density = [F(rng.randint(-5, 5)) for _ in made.leaf]
            for members, u in sums_of_residuals(h, s):
                assert all(made.pushed(density, members, u, b) == 0 for b in made.elements(u)), (v.subject, str(u))


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_proved_holds_on_random_batches(name):
    h, rng = RIGHT[name].hierarchy, random.Random(name)
    for made in quivers.legal(h, 12):
        uphold(h, verdicts(name), made, rng)


@pytest.mark.parametrize("name", [k for k, c in WRONG.items() if c.law not in ("structure", "locality")])
def test_what_is_proved_of_wrong_ones_holds_too(name):
    h, rng = WRONG[name].hierarchy, random.Random(name)
    if any(v.law == "markov" and v.status != "proved" for v in verdicts(name)):
        return
    for made in quivers.legal(h, 6):
        uphold(h, verdicts(name), made, rng)


def confirm(h, verdict: Verdict):
    """A counterexample, worked out again from what it writes."""
    values = verdict.counterexample.values
    made = quivers.from_witness(h, verdict)
    assert quivers.is_legal(made) or verdict.law == "markov", "an index would refuse this batch"
    if verdict.law == "markov":
        f = next(f for f in h.fibrations if verdict.subject == f"kernel {f.name}")
        i = next(i for i, e in made.label[f.source].items() if e == values["source"])
        try:
            assert made.weight(f, i) < 0
        except NoValue:
            assert values["weight"] == "no value"
    elif verdict.law == "reflecting":
        try:
            found = made.fibre_sum(kernels_named(h, verdict), values["element"])
        except NoValue:
            assert values["sum"].startswith("no sum")
        else:
            assert found != 1
            assert str(found) == values["sum"]
    elif verdict.law == "coherent":
        one, other = (F(v) for v in values["masses"])
        assert one != other
        assert not has_masses(h, made)
    elif verdict.law == "orthogonality":
        s = [x for x in h.strata if x.name in values["stratum"]]
        u = next(x for x in h.strata if x.name == values["over"])
        tokens = [i for i, leaf in enumerate(made.leaf) if leaf.name == values["leaf"]]
        density = [F(0)] * len(made.leaf)
        density[tokens[values["token"]]] = values["density"]
        found = made.pushed(density, s, u, values["element"])
        assert found == values["sum"]
        assert found != 0


def has_masses(h, made):
    """Whether one number per element exists with `K(a|b) = m(a)/m(b)`, by walking around until nothing changes."""
    links = {
        ((f.source, made.label[f.source][i]), (f.target, made.label[f.target][i]), made.weight(f, i))
        for f in h.fibrations
        for i in made.label[f.source]
    }
    m = {next(iter(links))[0]: F(1)}
    changed = True
    while changed:
        changed = False
        for a, b, k in links:
            if a in m and b not in m:
                m[b], changed = m[a] / k, True
            if b in m and a not in m:
                m[a], changed = m[b] * k, True
    return all(m[a] == k * m[b] for a, b, k in links)


@pytest.mark.parametrize("name", [k for k, c in WRONG.items() if c.law not in ("structure", "locality")])
def test_every_counterexample_is_one(name):
    h, confirmed = WRONG[name].hierarchy, 0
    for v in verdicts(name):
        if v.status == "refuted" and v.counterexample is not None and v.counterexample.concrete is not None:
            if v.law == "orthogonality" and h.shape.is_tree:
                continue  # that of its kernels
            confirm(h, v)
            confirmed += 1
    case = WRONG[name]
    verdict = next(v for v in verdicts(name) if (v.law, v.subject) == (case.law, case.subject))
    assert confirmed or verdict.counterexample is None or verdict.counterexample.concrete is None


# ---------------------------------------------------------------- random ones


def random_hierarchy(seed):
    """A tree or a quiver of few strata, with kernels that are right, or one of them bent."""
    rng = random.Random(seed)
    coarse = [batch, domain, modality, trajectory, turn]
    leaves = rng.sample([text, image, token], rng.choice((1, 1, 2)))
    strata, edges = [batch], []
    for s in coarse[1 : rng.randint(2, 5)]:
        below = rng.sample(strata, min(len(strata), rng.choice((1, 1, 1, 2))))
        edges += [(s, t) for t in below]
        strata.append(s)
    above = [s for s in strata if s not in [t for _, t in edges]]
    for leaf in leaves:
        below = rng.sample(above, 1) if rng.random() < 0.6 and leaf != leaves[-1] else above
        edges += [(leaf, t) for t in below]
    shape = Shape(
        tuple(dict.fromkeys(s for e in edges for s in e)), tuple(Fibration(a, b, uniform()) for a, b in edges)
    )

    def measure(s):
        parts = [count(leaf, over=s) for leaf in leaves if leaf in shape.leaves_over(s)]
        return sum(parts[1:], parts[0])

    bent = rng.randrange(len(edges)) if rng.random() < 0.4 else None
    ready = []
    for i, (a, b) in enumerate(edges):
        k = measure(a) / measure(b)
        if i == bent:
            k = rng.choice([1 / n(a, b), k / 2, 1 / measure(b), measure(a) / measure(b) * (1 + k) / 2, k * k])
        ready.append((a, b, k))
    crossed_ones = [
        (u, w)
        for u, w in itertools.combinations(shape.strata, 2)
        if set(shape.finer(u)) & set(shape.finer(w)) and shape.meets(u, w)
        and u not in shape.coarser(w) and w not in shape.coarser(u)
    ]  # fmt: skip
    assume = [balanced(u, w) for u, w in crossed_ones if rng.random() < 0.6]
    assume += [populated(a, over=b) for a, b in edges if rng.random() < 0.15]
    return make(*ready, assume=assume)


@functools.cache
def of_random(seed):
    h = random_hierarchy(seed)
    return h, mine(h)


@pytest.mark.parametrize("seed", range(60))
def test_random_ones(seed):
    """Whatever is said of them is so: on legal batches what is proved, on its witness what is refuted."""
    h, found = of_random(seed)
    if found[0].status != "proved":
        return
    rng = random.Random(seed)
    for v in found:
        on_a_batch = v.status == "refuted" and v.counterexample is not None and v.counterexample.concrete is not None
        if on_a_batch and (v.law != "orthogonality" or not h.shape.is_tree):
            confirm(h, v)
    upheld = 0
    for k in range(120):
        made = quivers.batches(h, 1000 * seed + k, tokens=1 + k % 6, even=k % 2 == 0)
        if len(made.leaf) <= 16 and quivers.is_legal(made):
            uphold(h, found, made, rng)
            upheld += 1
            if upheld == 12:
                break


def test_random_ones_are_of_all_kinds():
    statuses = {(v.law, v.status) for seed in range(60) for v in of_random(seed)[1]}
    assert {(law, "proved") for law in MINE} <= statuses
    assert {(law, "refuted") for law in ("reflecting", "coherent", "orthogonality")} <= statuses
