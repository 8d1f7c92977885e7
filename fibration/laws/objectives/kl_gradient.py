"""KL gradients: in expectation a penalty has the gradient of a divergence to a frozen policy, or of the entropy.

An estimate whose mean is a divergence is not always a penalty with that divergence's gradient: the gradient flows
through the estimate, and its mean may belong to something else. So k1 has no gradient in expectation, and k3 has that
of the reversed divergence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import sympy

from fibration.language.atoms import Parameter, token_log_ratio
from fibration.language.declared import CURRENT, OLD, LogProb, Policy
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.objectives import Penalty
from fibration.language.operators import exp
from fibration.language.sympy_bridge import ATOM_OF, CURRENT_LOG_PROB, cancelled, show, to_sympy, vanishes
from fibration.language.traversal import desugar
from fibration.laws import topic
from fibration.laws.batches.coefficients import policies_read
from fibration.laws.law import Decision, Law, proved, unproved
from fibration.laws.objectives.divergences import Sampled, is_covered, weighed
from fibration.laws.objectives.kl_gradient_search import leads_nowhere, looks_beyond, no_divergence
from fibration.laws.objectives.samples import Samples
from fibration.laws.remedies import Fix, Offers
from fibration.laws.subject import Subject

STATEMENT = (
    "the expected gradient of a penalty is that of κ·KL(current‖q) to a frozen policy q, or of κ times the entropy: "
    "∂P/∂log π = κ·(log π - log q) + const, or κ·log π + const; κ reads the state alone, is not 0, and for a policy q "
    "is never below 0"
)
GIVE_UP = "gives_up={'kl_gradient': 'why'}"
NOTHING = "nothing left in expectation"


def decide_kl_gradient(subject: Subject) -> Iterator[Decision]:
    h = subject.hierarchy
    for name, penalty, sampled in _covered(h):
        found = [s.divergence for s in sampled]
        if all(f is not None for f in found):
            granted = Samples(h).granted(weighed(h, penalty))
            words = dict.fromkeys(f.words for f in found if f is not None)
            yield proved(topic.penalty(name), "; ".join(words) + granted)
            continue
        formula, is_flat = desugar(sampled[0].formula), all(s.never_flows for s in sampled)
        witness = no_divergence(h, formula, sampled[0].passed, looks_beyond(formula) and not is_flat)
        said = "" if witness else ", of which it was not shown what its derivative is the gradient of"
        written = f"P = {penalty.formula}{estimator(h, penalty)}{said}"
        is_nothing = is_flat and any(s.has_slope and s.is_flat_near for s in sampled)
        decision = unproved(topic.penalty(name), written, _fixes(h, name), witness)
        yield replace(decision, fault=NOTHING if is_nothing else "")


def _covered(h: Hierarchy) -> Iterator[tuple[str, Penalty, list[Sampled]]]:
    """Yields every penalty that the law covers, with its name, and the penalty at the tokens of each leaf."""
    covered = ((name, penalty) for name, penalty in h.penalties.items() if is_covered(h, penalty))
    yield from ((name, penalty, [Sampled(h, leaf, penalty) for leaf in h.leaves]) for name, penalty in covered)


def estimator(h: Hierarchy, penalty: Penalty) -> str:
    """The name of the estimator that a penalty is a multiple of, with the policy: ` (0.04 times k3 of reference)`."""
    for q in (q for q in dict.fromkeys((*h.policies, OLD)) if q != CURRENT):
        d = CURRENT_LOG_PROB - LogProb(Policy(q))
        for name, formula in (("k1", d), ("k2", d * d / 2), ("k3", exp(-d) - 1 + d)):
            factor = _multiple(to_sympy(penalty.formula), to_sympy(formula))
            if factor is not None:
                return f" ({'' if factor == '1' else f'{factor} times '}{name} of {q})"
    return ""


def _multiple(value: Any, formula: Any) -> str | None:
    """The factor, of numbers and parameters, by which a value is a formula; None if there is none."""
    try:
        factor = cancelled(sympy.expand(value) / sympy.expand(formula))
    except (sympy.PolynomialError, NotImplementedError):
        return None
    if factor == 0 or not all(isinstance(ATOM_OF.get(s), Parameter) for s in factor.free_symbols):
        return None
    return show(factor) if vanishes(value - factor * formula) else None


def _fixes(h: Hierarchy, name: str) -> Offers:
    """The sign turned; else estimators with the gradient of the divergence to the policy that the penalty reads."""
    turned = _turned(h, name)
    (mended,) = (sampled for other, _, sampled in _covered(turned.mended()) if other == name)
    if all(s.divergence is not None for s in mended):
        return (turned,)
    read, ratio = {*policies_read(h.penalties[name].formula)} - {CURRENT}, exp(token_log_ratio)
    found: list[str | Fix] = []
    for q in (sorted(read - {OLD}) or sorted(read))[:1]:
        d = CURRENT_LOG_PROB - LogProb(Policy(q))
        found.append(_written(h, name, d**2 / 2, f"write {d**2 / 2} (k2)"))
        found.append(_written(h, name, ratio * d, f"write {ratio * d}, which is right off policy too"))
    entropy = ratio * (CURRENT_LOG_PROB - 1)
    return *found, _written(h, name, entropy, f"for the entropy write {entropy}"), GIVE_UP


def _written(h: Hierarchy, name: str, formula: Expression, words: str) -> Fix:
    """The fix that gives a penalty another formula."""
    made = Penalty(formula, h.penalties[name].objective, h.penalties[name].over)
    return Fix(words, lambda: h.replace(penalties={**h.penalties, name: made}))


def _turned(h: Hierarchy, name: str) -> Fix:
    turned = -h.penalties[name].formula
    return _written(h, name, turned, f"turn its sign, since a penalty is subtracted from the objective: {turned}")


WEAKER = (
    "from token to token of a state its derivative rises with log π - log q, so that it leads towards q; with log π "
    "alone it rises or falls"
)


def remainder(subject: Subject) -> Iterator[Decision]:
    """Decides what is left of the law if it is given up: no penalty leads away from its policy or lacks a gradient."""
    h = subject.hierarchy
    for name, penalty, sampled in _covered(h):
        rising = [s.rises for s in sampled]
        if all(rising):
            yield proved(topic.penalty(name), WEAKER)
            continue
        formula, named = desugar(sampled[0].formula), sampled[0].named
        passed = sorted(p for p in named if p not in (CURRENT, OLD))
        witness = leads_nowhere(h, formula, passed, bool(named) and OLD not in named, False in rising)
        written = f"P = {penalty.formula}{estimator(h, penalty)}"
        left = unproved(topic.penalty(name), written, (_turned(h, name),), witness, required=WEAKER)
        yield replace(left, fault=NOTHING if all(found is False for found in rising) else "")


LAW = Law("kl_gradient", STATEMENT, decide_kl_gradient, remainder=remainder)
