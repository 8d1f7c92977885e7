"""Checks verdicts on wrong trees and quivers in rationals: counterexamples break what is refuted.

They are evaluated by definition (`fuzz.world`). The test file of each law calls `refused` on its rows
of `quivers.wrong()`.
"""

from __future__ import annotations

import functools
import random
from dataclasses import replace
from fractions import Fraction

import pytest
from fuzz.batches import Batches
from fuzz.dual_numbers import value_of
from fuzz.judges import kernel_laws
from fuzz.judges.judge import attempt
from fuzz.witnesses import world_of
from hierarchies import quivers
from hierarchies.quivers import MINE, mine

from fibration.language.report import Verdict
from fibration.language.strata import Balanced
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
    """A counterexample, worked out again by definition from what it writes."""
    verdict = from_json(h, verdict)
    witness = verdict.counterexample
    world, values = world_of(h, witness), witness.values
    is_batch(world, witness.concrete)
    if verdict.law == "markov":
        assert kernel_laws.of_weights(world, verdict)
    elif verdict.law == "reflecting":
        found, why = attempt(lambda: kernel_laws.sums(world, kernels_named(h, verdict))[values["element"]])
        assert kernel_laws.of_sums(world, verdict)
        assert found == values["sum"] and (found is None) is (why == "no value")
    elif verdict.law == "coherent":
        assert values["masses"][0] != values["masses"][1]
        assert kernel_laws.of_paths(world, verdict)
    elif verdict.law == "orthogonality":
        tokens = [i for i, leaf in enumerate(world.batch.leaf) if leaf.name == values["leaf"]]
        x = [values["density"] if i == tokens[values["token"]] else F(0) for i in range(world.n)]
        rho = type(world)(h, replace(world.batch, x=x), exact=True).residual
        over, element = values["over"], values["element"]
        each = (
            value_of(v)
            for s in h.strata
            for e, v in rho.get((s.name, ""), {}).items()
            if s.name in values["stratum"] and world.below(s.name, e, over) == element
        )
        assert sum(each, F(0)) == values["sum"] != 0


def is_batch(world, concrete):
    """Paths agree, every element has a token, and what is assumed holds."""
    of = world.batch.leaf
    label = {s.name: [of[:i].count(s) if own == s else None for i, own in enumerate(of)] for s in world.h.leaves}
    label = {**world.label, **label}
    for (s, t), row in concrete.maps.items():
        assert all(e is None or label[t.name][i] == row[e] for i, e in enumerate(label[s.name]))
    for s in world.h.strata:
        assert set(label[s.name]) - {None} == set(range(concrete.size[s]))
    draw, meets = Batches(world.h, random.Random(0)), world.h.shape.meets
    for a in world.h.assume:
        balanced = isinstance(a, Balanced)
        held = (draw._is_balanced(world, a, s.name) for s in meets(a.first, a.second)) if balanced else (draw._meets(world.batch, a),)
        assert all(held), "an index would refuse this batch"
