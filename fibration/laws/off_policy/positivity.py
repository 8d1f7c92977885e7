"""Positivity: the gated ratio `𝒢(r)` that kernels, gates and recovery give together has a value above 0."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sympy import oo

from fibration.language.atoms import gated, in_channel, mass, residual
from fibration.language.expressions import Expression, as_expression
from fibration.language.gates import clip_gate, log_ratio, signed_log_ratio
from fibration.language.hierarchy import Hierarchy, gates
from fibration.language.operators import NOT_NEGATIVE, POSITIVE
from fibration.language.report import Verdict
from fibration.language.traversal import substitute
from fibration.laws.gates.contributions import domain
from fibration.laws.gates.coordinates import coordinate, is_logarithmic, normal_recovery
from fibration.laws.gates.recovery import scaled
from fibration.laws.law import Decision, Law, following, proved, unproved
from fibration.laws.off_policy.deviations import shrinks, stay_above_minus_1
from fibration.laws.off_policy.positivity_search import of_one_token, ratio_not_positive
from fibration.laws.on_policy.identity import gate_without_a_value
from fibration.laws.remedies import Fix, Offers, Otherwise, bounded, gate_to_write
from fibration.laws.signs.claim import Claim, divided, inside, known_at
from fibration.laws.signs.neighbourhood import RHO
from fibration.laws.subject import Subject

STATEMENT = "gated ratios are positive: 𝒢(r) > 0"


def decide_positivity(subject: Subject) -> Iterator[Decision]:
    h = subject.hierarchy
    loose, argument = _argument(subject)
    if argument:
        yield proved("hierarchy", argument)
        return
    remedy: str | Offers = ""
    cause, found = subject.first_failure("recovery"), f"𝒢(r) = {_recovery(h)}, whose lower bound is not above 0"
    if loose is not None:
        found = f"{loose.words}, which may have no value: a division by 0, or a logarithm or root outside its domain"
        remedy, cause = loose.claim.remedy(h), loose.cause
    witness = of_one_token(h, coordinate(h, subject)) if len(h.order) == 1 else None
    if witness is None and subject.first_failure("markov", "reflecting", "coherent", "recovery") is None:
        witness = ratio_not_positive(h)
    yield following(unproved("hierarchy", found, remedy or _remedy(h), witness), cause)


def _argument(subject: Subject) -> tuple[_Required | None, str | None]:
    """A formula that may have no value, if there is one; and the argument for the law, if there is one."""
    known = coordinate(subject.hierarchy, subject)
    loose = next((found for found in _must_have_values(subject, known) if not found.claim.is_shown), None)
    return loose, why_positive(subject, known) if loose is None else why_positive_alone(subject)


def _recovery(h: Hierarchy) -> str:
    return " and ".join(dict.fromkeys(str(normal_recovery(h, leaf)) for leaf in h.leaves))


def _remedy(h: Hierarchy) -> Offers:
    """The bound of a parameter, the decomposition or the gate with which gated ratios are positive."""
    ratios = scaled(log_ratio, h.decomposition.scale)
    if h.decomposition.channels != ("",):
        ratios = scaled(signed_log_ratio, mass)
    offers = [*bounded(h, [g for _, _, g in gates(h)], _is_positive)]
    if _is_positive(h.replace(decomposition=ratios)):
        words = f"gate log ratios: decomposition={ratios!r}, whose R is positive whatever the gates give"
        offers.append(Fix(words, lambda: h.replace(decomposition=ratios)))
    elif len(h.order) == 1 and _is_positive(h.replace(gates={h.order[0]: clip_gate(as_expression(0.2))})):
        offers.append(gate_to_write(h, h.order[0], clip_gate(as_expression(0.2))))
    advice = "divide by, or take the logarithm or root of, what is positive, as maximum(x, 1e-6) is"
    return (*offers, Otherwise(advice))


def _is_positive(h: Hierarchy) -> bool:
    return bool(_argument(Subject(h, []))[1])


def why_positive(subject: Subject, known: str) -> str | None:
    """The argument that gated ratios are positive if everything has a value; None if there is none."""
    if is_logarithmic(subject.hierarchy):
        return f"𝒢(r) = {_recovery(subject.hierarchy)} > 0 for every real argument"
    if shrinks(subject, known):
        return "the gates add up to something between 0 and the token's own density: 𝒢(r) lies between 1 and r"
    argument = why_positive_everywhere(subject) or why_positive_alone(subject)
    return argument or (stay_above_minus_1(subject) if known == "deviation" else None)


def why_positive_everywhere(subject: Subject) -> str | None:
    """The argument that `R` is above 0 whatever the gates give; None if there is none."""
    h = subject.hierarchy
    recoveries = {leaf: h.with_mass(h.decomposition.recovery, leaf) for leaf in h.leaves}
    if all(Claim(recovery, subject.at(leaf), POSITIVE).is_shown for leaf, recovery in recoveries.items()):
        return f"𝒢(r) = {h.decomposition.recovery} > 0 on every branch, for every real argument"
    return None


def why_positive_alone(subject: Subject) -> str | None:
    """The argument that `R(g(F(r)))` is above 0 on a single stratum, though `R` alone may have no value; else None."""
    h = subject.hierarchy
    if len(h.order) > 1:
        return None
    [leaf] = h.order
    densities = {c: h.with_mass(e, leaf) for c, e in h.decomposition.densities}
    passed: dict[Expression, Expression] = {
        gated(c): substitute(in_channel(h.gate(leaf), c), {residual: e}) for c, e in densities.items()
    }
    whole = h.with_mass(substitute(h.decomposition.recovery, passed), leaf)
    claims = (Claim(whole, subject.at(leaf), POSITIVE), *inside(h, whole))
    return "R(g(F(r))) > 0 on every branch" if all(claim.is_shown for claim in claims) else None


class _Required(NamedTuple):
    """A formula that must have a value for every argument: in words, as a claim, and a verdict against it."""

    words: str
    claim: Claim
    cause: Verdict | None


def _must_have_values(subject: Subject, known: str) -> Iterator[_Required]:
    """Yields the kernels, the gates, the densities and the recovery."""
    h = subject.hierarchy
    for f in h.fibrations:
        claim, cause = Claim(f.weight, subject.at(f.source)), subject.kernel_without_a_value(f)
        yield _Required(f"the kernel {f.name} has the weight {f.weight}", claim, cause)
    for stratum, _, gate in gates(h):
        assume = subject.at(stratum)
        if known == "split" and domain(h, stratum, known) == (0, oo):
            assume = assume.with_signs({RHO: NOT_NEGATIVE})
        if len(h.order) == 1 and known == "deviation":
            assume = assume.with_signs({1 + RHO: POSITIVE})
        said, cause = f"the gate on {stratum} is {h.gates[stratum]}", gate_without_a_value(subject, stratum)
        yield _Required(said, Claim(divided(gate), assume), cause)
        for claim in inside(h, gate):
            yield _Required(f"the gate on {stratum} gathers a formula", claim, None)
    cause = subject.first_failure("recovery")
    for leaf in h.leaves:
        for _, density in h.decomposition.densities:
            claim = Claim(h.with_mass(density, leaf), known_at(h, leaf))
            yield _Required(f"a token's density is {density}", claim, cause)
        recovery = h.with_mass(h.decomposition.recovery, leaf)
        yield _Required(f"R = {h.decomposition.recovery}", Claim(recovery, subject.at(leaf)), cause)


LAW = Law("positivity", STATEMENT, decide_positivity)
