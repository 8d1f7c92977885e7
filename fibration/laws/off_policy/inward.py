"""Inward: outside its budget a level never pushes an element further out.

A gate passes on the pull on its residual, times its slope. The law has three parts:

- An inward pull leads towards residual 0. A slope below 0 turns it round, as a roll-back that reads no advantage does.
- An outward pull leads away from 0. A gate has a budget where it stops the pull; a slope above 0 beyond it breaks it.
- A gate that stops inward pulls and no outward pull has its bound on the wrong side.

The pull is that of `Hierarchy.pull`, with the direction in which the recovery moves. The proof takes the gate's
branches two at a time (`off_policy/further_out.py`). If it fails, the gate's pieces tell where to search for a batch.

With a `stop`, `R(F(r))` may have the value `r` and another slope. The decomposition is then judged as a gate of the log
ratio of a token.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from sympy import oo

from fibration.errors import FibrationError
from fibration.language.atoms import (
    Attribute,
    Component,
    Count,
    Parameter,
    Stratum,
    Total,
    advantage,
    residual,
    token_log_ratio,
)
from fibration.language.expressions import Expression
from fibration.language.gates import Gate, clip_gate, identity_gate, log_ratio, pessimistic_clip_gate
from fibration.language.roles import words
from fibration.language.sympy_bridge import from_sympy, symbol
from fibration.language.traversal import applications, atoms, substitute
from fibration.laws import topic
from fibration.laws.batches.concrete import Witness
from fibration.laws.batches.first_update import gates_alone
from fibration.laws.gates.coordinates import composed, coordinate
from fibration.laws.gates.recovery import inverted, scaled
from fibration.laws.law import Decision, Law, following, proved, unproved
from fibration.laws.off_policy.further_out import keeps, lines_out
from fibration.laws.off_policy.inward_search import SIZES, Span, by_recursion, pushed_further_out
from fibration.laws.off_policy.pushes import LOST, OPENED, TURNED, Fault, Pushed
from fibration.laws.off_policy.reversal_search import reversed_token
from fibration.laws.on_policy.identity import gate_without_a_value
from fibration.laws.remedies import Fix, Offers, Otherwise, gate_to_write
from fibration.laws.subject import Subject

STATEMENT = "outside its budget a level never pushes an element further out"
ORDER = "pessimistic_clip_gate(low, high)"
ANYWHERE = (TURNED, OPENED)  # faults that are searched for without the gate's pieces too
STAYS = "an outward pull that it stops stays stopped further out"
MET = "where it stops or turns round an inward pull it stops an outward one too"
KEPT = "it turns no inward pull round"
# by fault: all of the law but this fault
REST = {TURNED: f"{STAYS}, and {MET}", OPENED: f"{KEPT}, and {MET}", LOST: f"{KEPT}, and {STAYS}"}
GIVE_UP = "gives_up={'inward': 'why'}, if the loss means it"


def decide_inward(subject: Subject) -> Iterator[Decision]:
    if subject.hierarchy.objective.estimator == "score":
        yield _of_score(subject)
        return
    for stratum in subject.hierarchy.order:
        yield _of_gate(subject, stratum)
    if any(applications(composed(subject.hierarchy, leaf), "stop") for leaf in subject.hierarchy.leaves):
        yield _of_decomposition(subject)


def _of_decomposition(subject: Subject, but: str = "") -> Decision:
    """The decision for `R∘F`; `but`: for all of the law except this fault."""
    h = subject.hierarchy
    if _composed_keeps(subject, but):
        return proved("decomposition", REST[but] if but else f"R(F(r)): {KEPT}, {STAYS}, and {MET}")
    fault = "" if but else next((fault for fault in REST if _composed_keeps(subject, fault)), "")
    witness = None
    if fault not in (OPENED, LOST) and but != TURNED:  # with gates that pass everything, R∘F alone reverses tokens
        witness = reversed_token(h.replace(gates=dict.fromkeys(h.order, identity_gate()), advantages=None))
        fault = TURNED if witness and not but else fault
    found = f"R(F(r)) = {composed(h, h.leaves[0])}, {'which reverses' if witness else 'whose slope may reverse'} a pull"
    remedy = inverted(h) if but else (*inverted(h), GIVE_UP)
    decision = unproved("decomposition", found, remedy, witness, REST.get(but, ""))
    return following(replace(decision, fault=fault), subject.first_failure("recovery"))


def _composed_keeps(subject: Subject, but: str) -> bool:
    """Whether `R∘F` keeps the law, with a token's log ratio as its residual; `but`: all of it except this fault."""
    h, base = subject.hierarchy, symbol(advantage)
    for leaf, side in itertools.product(h.leaves, (1, -1)):
        assume = subject.at(leaf)
        whole = substitute(composed(h, leaf), {token_log_ratio: residual})
        held = {p: assume.with_signs({base: frozenset({p})}) for p in (1, -1)}
        lines = lines_out(h, leaf, "", whole, side, assume, None, side * oo)
        if not keeps(whole, held, side, base, lines, but):
            return False
    return True


def _of_score(subject: Subject) -> Decision:
    """The decision for a score estimator, whose coefficients are `μ·𝒢·A`."""
    if subject.proved("positivity"):
        return proved("hierarchy", "𝒢(r) > 0, so that every coefficient μ·𝒢·A has the sign of its advantage")
    ratios = scaled(log_ratio, subject.hierarchy.decomposition.scale)
    words = f"gate log ratios, whose R is above 0: decomposition={ratios!r}"
    remedy = (Fix(words, lambda: subject.hierarchy.replace(decomposition=ratios)), GIVE_UP)
    witness = reversed_token(by_recursion(gates_alone(subject.hierarchy.replace(advantages=None))), SIZES)
    witness = witness and replace(witness, values={"what": TURNED, **witness.values})
    found = "𝒢(r), which turns advantages round where it is below 0" if witness else "𝒢(r), whose sign was not found"
    return following(unproved("hierarchy", found, remedy, witness), subject.first_failure("recovery", "positivity"))


def _of_gate(subject: Subject, stratum: Stratum, but: str = "") -> Decision:
    """The decision for a gate; `but`: for all of the law except this fault."""
    h, gate = subject.hierarchy, subject.hierarchy.gates[stratum]
    channels = [Pushed(subject, stratum, channel) for channel in h.decomposition.channels]
    undecided = [pushed for pushed in channels if not pushed.is_kept(but)]
    if not undecided:
        kept = f"{gate}: a pull towards residual 0 keeps its sign; an outward pull, once stopped, stays stopped"
        return proved(topic.gate(stratum), REST[but] if but else kept)
    found: list[Fault] = []
    witness = None
    for pushed in undecided:
        found = pushed.faults(but)
        witness = _witness(pushed, found, frozenset(ANYWHERE) - {but})
        if found or witness:
            break
    decision = _refused(subject, stratum, found, witness)
    return replace(decision, remedy=decision.remedy[:-1], required=REST[but]) if but else decision


def _witness(pushed: Pushed, found: list[Fault], anywhere: frozenset[str]) -> Witness | None:
    """A batch that shows a fault that the pieces suggest, or any of `anywhere` if they do not suggest where."""
    h, stratum, channel = pushed.subject.hierarchy, pushed.stratum, pushed.channel
    known = coordinate(h, pushed.subject)
    of = "deviation" if "deviation" in known else "log"
    spans = [_span(low, high) for fault in found for low, high in fault.spans] if known else []
    spans = spans if all(_is_known(end) for span in spans for end in span) else []
    witness = pushed_further_out(h, stratum, channel, {f.what for f in found}, spans, of) if found else None
    if witness is None and (spans or not found):  # no piece says where, or it lies further out on a bent one
        moves = not known and pushed.reads_densities
        if what := anywhere - ({OPENED} if moves else set()):
            witness = pushed_further_out(h, stratum, channel, set(what), [], of)
    return witness


def _span(low: object, high: object) -> Span:
    return tuple(None if end in (oo, -oo) else from_sympy(end) for end in (low, high))  # type: ignore[return-value]


def _is_known(end: Expression | None) -> bool:
    """Whether an end of a span is a number on every batch, whatever the advantages are."""
    known = (Attribute, Component, Count, Parameter, Total)
    return end is None or all(isinstance(a, known) for a in atoms(end))


def _refused(subject: Subject, stratum: Stratum, found: list[Fault], witness: Witness | None) -> Decision:
    gate = subject.hierarchy.gates[stratum]
    what = {str(witness.values["what"])} if witness else {f.what for f in found}
    fault, why = "", "whose slopes were not decided"
    remedy = f"write a gate whose pieces have known slopes, such as {stratum}: {ORDER} in gates"
    if TURNED in what:
        fault, why = TURNED, "which reverses an inward pull"
        remedy = f"pass inward pulls, as {stratum}: {ORDER} does"
    elif OPENED in what:
        fault, why, remedy = (
            OPENED,
            "which passes outward pulls again beyond the point where it stops them",
            f"clip at the bound, as {stratum}: clip_gate(bound) in gates does, and let nothing pass beyond it",
        )
    elif what:
        fault, why = LOST, "which stops inward pulls, and no outward pull"
        remedy = f"swap what bounds its two sides, as {ORDER} has them; inward() alone would leave no bound"
    if "pull=" in str(gate) and {TURNED, LOST} & what:
        remedy = "leave pull= out of inward(): it then is what the law asks of"
    offers: Offers = (Otherwise(remedy),)
    if made := "pull=" not in remedy and _gate_to_write(subject, stratum, fault):
        offers = (gate_to_write(subject.hierarchy, stratum, made), *offers)
    decision = unproved(topic.gate(stratum), f"{gate}, {why}", (*offers, GIVE_UP), witness)
    decision = replace(decision, fault=fault)
    lacking = subject.kernel_without_a_value(*subject.hierarchy.fibrations) or gate_without_a_value(subject, stratum)
    cause = lacking or subject.first_failure("reflecting", "coherent", "recovery")
    return decision if witness else following(decision, cause)


def _gate_to_write(subject: Subject, stratum: Stratum, fault: str) -> Gate | None:
    """A gate with the bounds of the declared one, for which the law is proved."""
    h, gate = subject.hierarchy, subject.hierarchy.gates[stratum]
    bounds = [a for a in dict.fromkeys(atoms(gate.expression)) if isinstance(a, Parameter)][:2]
    bounds.sort(key=lambda p: "high" in words(p.name))
    clips = [lambda: pessimistic_clip_gate(bounds[0], bounds[-1]), lambda: clip_gate(bounds[0])] if bounds else []
    offers = [gate.inward] if fault == TURNED else clips[::-1] if fault == OPENED else clips
    for offer in offers:
        try:
            made = offer()
            mended = Subject(h.replace(gates={**h.gates, stratum: made}), [])
        except FibrationError:  # a bound that this gate cannot have
            continue
        if all(Pushed(mended, stratum, channel).is_kept() for channel in h.decomposition.channels):
            return made
    return None


def remainder(subject: Subject) -> Iterator[Decision]:
    """Decides what is left of the law if it is given up for a gate: the gate fails in no other way."""
    given_up = {v.subject: v.fault for v in subject.verdicts if v.law == LAW.name and v.fault}
    for stratum in subject.hierarchy.order:
        if fault := given_up.get(topic.gate(stratum)):
            yield _of_gate(subject, stratum, fault)
    if fault := given_up.get("decomposition"):
        yield _of_decomposition(subject, fault)


LAW = Law("inward", STATEMENT, decide_inward, remainder=remainder)
