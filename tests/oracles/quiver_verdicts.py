"""Checks verdicts on wrong trees and quivers in rationals: counterexamples break what is refuted.

Batches are `quivers.Tokens`, without the library's procedures. The test file of each law calls `refused` on its rows
of `quivers.wrong()`.
"""

from __future__ import annotations

import functools
import itertools
import math
from fractions import Fraction

import pytest
from hierarchies import quivers
from hierarchies.quivers import MINE, mine, reaches

from fibration.language.exact import NoValue
from fibration.language.report import Verdict
from oracles.counterexample_json import from_json

RIGHT, WRONG = quivers.right(), quivers.wrong()
F = Fraction


@functools.cache
def verdicts(name):
    return mine({**RIGHT, **WRONG}[name].hierarchy)


def shown(verdict):
    return f"{verdict.error('q')} {verdict.counterexample}"


def wrong_quivers(law):
    """A test for every wrong tree or quiver that breaks `law`."""
    return pytest.mark.parametrize("name", [name for name, case in WRONG.items() if case.law == law])


def refused(name):
    """The law that it breaks says so in the words that a user needs, and every counterexample is one."""
    case, found = WRONG[name], verdicts(name)
    said_in_words(case, found)
    if case.law not in ("structure", "locality"):
        every_kernel_is_asked(case.hierarchy, found)
        assert all(v.counterexample is not None for v in found if v.status == "refuted" and v.subject != "hierarchy")
        counterexamples_hold(case, found)


def said_in_words(case, found):
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


def counterexamples_hold(case, found):
    h, confirmed = case.hierarchy, 0
    for v in found:
        if v.status == "refuted" and v.counterexample is not None and v.counterexample.concrete is not None:
            if v.law == "orthogonality" and h.shape.is_tree:
                continue  # that of its kernels
            confirm(h, v)
            confirmed += 1
    verdict = next(v for v in found if (v.law, v.subject) == (case.law, case.subject))
    assert confirmed or verdict.counterexample is None or verdict.counterexample.concrete is None


def covers_by_hand(h, target):
    """Smallest sets of fibrations into `target` that part its leaves."""
    leaves = [s for s in h.strata if not any(f.target == s for f in h.fibrations)]
    into = [f for f in h.fibrations if f.target == target]
    for size in range(1, len(into) + 1):
        for chosen in itertools.combinations(into, size):
            times = [sum(reaches(h, leaf, f.source) for f in chosen) for leaf in leaves if reaches(h, leaf, target)]
            if all(t == 1 for t in times):
                yield chosen


def wanted_sums(h, made, fs, b):
    """What the weights of `fs` over `b` have to sum to: 1 for a cover, and else the share that the ways of covers give.

    These are several numbers where paths do not agree.
    """
    target = fs[0].target
    if tuple(fs) in set(covers_by_hand(h, target)):
        return {F(1)}
    (f,) = fs
    leaves = [s for s in dict.fromkeys(made.leaf) if reaches(h, s, f.source)]
    shares = set()
    for chosen in itertools.product(*(ways_by_hand(h, leaf, target) for leaf in leaves)):
        share = F(0)
        for i in made.inside(target, b):
            for way in (w for leaf, w in zip(leaves, chosen, strict=True) if made.leaf[i] == leaf):
                share += math.prod(made.weight(step, i) for step in way)
        shares.add(share)
    return shares


def ways_by_hand(h, leaf, target):
    """Every way down from a leaf along fibrations that are in covers."""
    if leaf == target:
        yield []
        return
    for last in dict.fromkeys(f for cover in covers_by_hand(h, target) for f in cover if reaches(h, leaf, f.source)):
        yield from ([*way, last] for way in ways_by_hand(h, leaf, last.source))


def every_kernel_is_asked(h, found):
    """Every fibration is in some verdict on reflecting."""
    named = {f for v in found if v.law == "reflecting" for f in kernels_named(h, v)}
    assert named == set(h.fibrations)


def kernels_named(h, verdict):
    """The fibrations that a verdict on reflecting speaks of."""
    sources, _, target = verdict.subject.partition(" ")[2].partition(" → ")
    names = sources.split(", ")
    return [f for f in h.fibrations if f.source.name in names and f.target.name == target]


def confirm(h, verdict: Verdict):
    """A counterexample, worked out again from what it writes."""
    verdict = from_json(h, verdict)
    values = verdict.counterexample.values
    made = quivers.from_witness(h, verdict)
    assert quivers.is_legal(made) or verdict.law == "markov", "an index would refuse this batch"
    if verdict.law == "markov":
        f = next(f for f in h.fibrations if verdict.subject == f"kernel {f.name}")
        i = next(i for i, e in made.label[f.source].items() if e == values["source"])
        try:
            assert made.weight(f, i) < 0
        except NoValue:
            assert values["weight"] is None
    elif verdict.law == "reflecting":
        try:
            found = made.fibre_sum(kernels_named(h, verdict), values["element"])
        except NoValue:
            assert values["sum"] is None
        else:
            wanted = wanted_sums(h, made, kernels_named(h, verdict), values["element"])
            assert found not in wanted
            assert found == values["sum"]
            assert values.get("share", F(1)) in wanted
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
