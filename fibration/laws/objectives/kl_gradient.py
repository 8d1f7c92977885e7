"""KL gradients: in expectation a penalty has the gradient of a divergence to a frozen policy, or of the entropy.

An estimate whose mean is a divergence is not always a penalty with that divergence's gradient: the gradient flows
through the estimate, and its mean may belong to something else. So k1 has no gradient in expectation, and k3 has that
of the reversed divergence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fibration.language.atoms import at
from fibration.language.hierarchy import Hierarchy
from fibration.language.penalties import Penalty
from fibration.language.policies import CURRENT, OLD, LogProb
from fibration.language.statistics import atoms_within
from fibration.language.traversal import desugar
from fibration.laws import topic
from fibration.laws.law import Decision, Law, proved, unproved
from fibration.laws.objectives.divergences import (
    divergence,
    has_slope,
    is_covered,
    is_flat_near,
    never_flows,
    rises,
    weighed,
)
from fibration.laws.objectives.kl_gradient_search import leads_nowhere, looks_beyond, no_divergence
from fibration.laws.objectives.samples import Samples
from fibration.laws.subject import Subject

STATEMENT = (
    "the expected gradient of a penalty is that of κ·KL(current‖q) to a frozen policy q, or of κ times the entropy: "
    "∂P/∂log π = κ·(log π - log q) + const, or κ·log π + const; κ reads the state alone, is not 0, and for a policy q "
    "is never below 0"
)
REMEDY = (
    "with d = log_prob(current) - log_prob(q) write d**2/2 (k2), or exp(token_log_ratio)*d, which is right off policy "
    "too; for the entropy exp(token_log_ratio)*(log_prob(current) - 1); or gives_up={'kl_gradient': 'why'}"
)
REMEDY_OF_WEAKER = "turn its sign: a penalty is subtracted from the objective"
NOTHING = "nothing left in expectation"


def covered(h: Hierarchy) -> list[tuple[str, Penalty]]:
    """The penalties that the law covers, with their names."""
    return [(name, p) for name, p in h.penalties.items() if is_covered(h, p)]


def decide_kl_gradient(subject: Subject) -> Iterator[Decision]:
    for name, penalty in covered(subject.hierarchy):
        yield _of_penalty(subject, topic.penalty(name), penalty)


def _of_penalty(subject: Subject, name: str, penalty: Penalty) -> Decision:
    h = subject.hierarchy
    found = [divergence(h, leaf, penalty) for leaf in h.leaves]
    if all(f is not None for f in found):
        granted = Samples(h).granted(weighed(h, penalty))
        return proved(name, "; ".join(dict.fromkeys(f.words for f in found if f is not None)) + granted)
    formula = desugar(at(weighed(h, penalty), h.leaves[0]))
    read = (a.policy.name for a in atoms_within(formula, LogProb))
    passed = [p for p in dict.fromkeys(read) if p not in (CURRENT, OLD)]
    is_flat = all(never_flows(h, leaf, penalty) for leaf in h.leaves)
    witness = no_divergence(h, formula, passed, looks_beyond(formula) and not is_flat)
    said = "" if witness else ", of which it was not shown what its derivative is the gradient of"
    turned = Penalty(-penalty.formula, penalty.objective, penalty.over)
    is_turned = all(divergence(h, leaf, turned) is not None for leaf in h.leaves)
    remedy = REMEDY_OF_WEAKER if is_turned else REMEDY
    decision = unproved(name, f"P = {penalty.formula}{said}", remedy, witness)
    is_nothing = is_flat and any(has_slope(h, leaf, penalty) and is_flat_near(h, leaf, penalty) for leaf in h.leaves)
    return replace(decision, fault=NOTHING if is_nothing else "")


WEAKER = (
    "from token to token of a state its derivative rises with log π - log q, so that it leads towards q; with log π "
    "alone it rises or falls"
)


def remainder(subject: Subject) -> Iterator[Decision]:
    """Decides what is left of the law if it is given up: no penalty leads away from its policy or lacks a gradient."""
    h = subject.hierarchy
    for name, penalty in covered(h):
        rising = [rises(h, leaf, penalty) for leaf in h.leaves]
        if all(rising):
            yield proved(topic.penalty(name), WEAKER)
            continue
        formula = desugar(at(weighed(h, penalty), h.leaves[0]))
        read = [a.policy.name for a in atoms_within(penalty.formula, LogProb)]
        passed = sorted(name for name in read if name not in (CURRENT, OLD))
        named = bool(read) and OLD not in read
        witness = leads_nowhere(h, formula, passed, named, False in rising)
        left = unproved(topic.penalty(name), f"P = {penalty.formula}", REMEDY_OF_WEAKER, witness, required=WEAKER)
        yield replace(left, fault=NOTHING if all(found is False for found in rising) else "")


LAW = Law("kl_gradient", STATEMENT, decide_kl_gradient, remainder=remainder)
