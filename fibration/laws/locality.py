"""Locality (def:fgh iii): a formula of an element reads only quantities with one value at that element."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from fibration.errors import an
from fibration.language.atoms import (
    Attribute,
    Component,
    Count,
    Density,
    Gated,
    Parameter,
    Reading,
    Stratum,
    Total,
    advantage,
    channel_sign,
    in_channel,
    mass,
    residual,
    token_log_ratio,
)
from fibration.language.declared import LogProb
from fibration.language.expressions import Expression
from fibration.language.fixed import with_declared
from fibration.language.gates import Gate
from fibration.language.hierarchy import Hierarchy
from fibration.language.outline import whole_batch
from fibration.language.statistics import Aggregate, Ordered
from fibration.language.traversal import atoms, substitute
from fibration.laws import topic
from fibration.laws.batches.concrete import Concrete, Witness
from fibration.laws.batches.shapes import regular_maps
from fibration.laws.law import Decision, Law, proved, refuted
from fibration.laws.remedies import Fix, gate_to_write
from fibration.laws.signs.assumptions import Assumptions
from fibration.laws.signs.claim import Claim, divided, required_number
from fibration.laws.subject import Subject
from fibration.laws.values.numerals import plural

STATEMENT = (
    "a formula reads only what has one value at its element; kernel weights, gates, decompositions and recoveries read "
    "parameters, counts and attributes; a gate also reads its residual, its advantage, densities of coarser strata, "
    "statistics and order, and on tokens log-probs of frozen policies; a decomposition also reads the log ratio, the "
    "advantage and order of tokens; a recovery also reads gated densities and the advantage of a token"
)


Problem = tuple[str, str, str | Fix]  # what is read, why it may not be read there, a remedy


def decide_locality(subject: Subject) -> Iterator[Decision]:
    h = subject.hierarchy
    readers: list[tuple[str, Reader, Expression]]
    readers = [(topic.kernel(f), Weight(h, f.source), f.weight) for f in h.fibrations]
    readers += [(topic.gate(s), Reader(h, s), h.gate(s)) for s in h.gates]
    for what, reader, expression in readers:
        problem = next((_declared(reader, a, p) for a in atoms(expression) if (p := reader.problem(a))), None)
        problem = problem or (_of_none(h, reader.stratum) if type(reader) is Reader else None)
        read = ", ".join(str(a) for a in atoms(expression))
        yield _nonlocal(h, what, reader.stratum, problem) if problem else proved(what, f"reads {read or 'nothing'}")
    densities: list[tuple[type[Reader], Expression]] = [(Densities, e) for _, e in h.decomposition.densities]
    back = [(Recovery, h.decomposition.recovery), (Scale, h.decomposition.scale)]
    for what, parts in (("decomposition", densities), ("recovery", back)):
        # the decisions on kernels cover what the mass reads
        read_by = ((part(h, leaf), a) for leaf in h.leaves for part, e in parts for a in atoms(e) if a != mass)
        found = next(((by.stratum, p) for by, a in read_by if (p := by.problem(a))), None)
        own = f"reads only the {' or '.join(s.name for s in h.leaves)} itself"
        if any(isinstance(a, Ordered) for _, e in parts for a in atoms(e)):
            own += ", and what comes before it or after it"
        yield _nonlocal(h, what, *found) if found else proved(what, own)


def _declared(reader: Reader, atom: Expression, problem: Problem) -> Problem:
    """The problem with an atom; its remedy is the gate to write, if another atom in its place mends the gate."""
    found, why, remedy = problem
    h, s = reader.h, reader.stratum
    others: list[Expression] = []
    if isinstance(atom, (Count, Total, Aggregate)):
        others = [replace(atom, over=place) for place in reader.here if place != atom.of]
    elif isinstance(atom, Attribute) and s in h.coarser(atom.on):
        others = [Total(atom, over=s)]
    elif isinstance(atom, Density) and atom.stratum != s:
        others = [Density(place, atom.channel) for place in reader.coarser]
    elif str(remedy).startswith("read `residual`"):
        others = [residual]
    for other in others if type(reader) is Reader else ():
        made = substitute(h.gate(s), {atom: other})
        if not any(reader.problem(a) for a in atoms(made)):
            return found, why, gate_to_write(h, s, Gate(made), f"; that is, {remedy}")
    return problem


def _of_none(h: Hierarchy, stratum: Stratum) -> Problem | None:
    """The problem with a statistic of a branch that may be empty, if the gate reads it without a condition."""
    gate = h.gate(stratum)
    numbers = {number: a for a in atoms(gate) if (number := required_number(a)) is not None}
    known = Assumptions(whole_batch(h), h.assume, stratum)
    for channel in h.decomposition.channels if numbers else ():
        for empty in Claim(divided(in_channel(gate, channel)), known).empty_branches():
            if empty in numbers:
                remedy = f"ask for it, where({empty} > 0, ...), or assume=[populated({empty.of}, over=...)]"
                return f"{numbers[empty]}", f"{an(empty.over)} may have no {empty.of}", remedy
    return None


def _nonlocal(h: Hierarchy, what: str, stratum: Stratum, problem: Problem) -> Decision:
    found, why, remedy = problem
    # the smallest regular hierarchy in which every element but the root has a sibling
    siblings = Concrete(h.shape, regular_maps(h.shape, {s: 1 if s == h.order[0] else 2 for s in h.order}))
    return refuted(what, found, (remedy,), Witness(why, siblings, {"stratum": stratum.name}))


def _redeclared(h: Hierarchy, p: Parameter, **changes: Any) -> Fix:
    """The fix that declares a parameter otherwise, with one default."""
    given = {"lower": p.lower, "upper": p.upper, "per_channel": p.per_channel, "on": p.on, **changes}
    default = p.default
    if isinstance(default, Mapping) and not given["per_channel"]:
        default = next(iter(default.values()))
    made = Parameter(p.name, default, **given)
    return Fix(f"declare {made.declaration()}", lambda: with_declared(h, {p: made}))


# the method of `Reader` for each class of atom
READ_BY: dict[type[Expression], str] = {
    Parameter: "parameter", Component: "parameter", Count: "sum", Total: "sum", Attribute: "attribute",
    Density: "density", Gated: "gated", Reading: "reading", LogProb: "log_prob", Aggregate: "statistic",
    Ordered: "order",
}  # fmt: skip


class Reader:
    """What a gate may read at the elements of a stratum. A method per class of atom returns its problem, or None."""

    def __init__(self, h: Hierarchy, stratum: Stratum) -> None:
        self.h, self.stratum = h, stratum
        self.coarser = h.coarser(stratum)
        self.all = whole_batch(h)  # with groups, the rows and the batch
        self.places = (stratum, *self.all.coarser(stratum))
        self.here = tuple(s for s in self.places if s in (stratum, *self.coarser, *h.groups))

    def problem(self, atom: Expression) -> Problem | None:
        """The problem with reading an atom here, or None."""
        return getattr(self, READ_BY[type(atom)])(atom)  # type: ignore[no-any-return]

    def parameter(self, atom: Parameter | Component) -> Problem | None:
        p = atom.parameter if isinstance(atom, Component) else atom
        if p.on is not None and p.on not in self.here:
            why = f"{an(self.stratum)} lies over no single {p.on}"
            return f"parameter '{p.name}', which varies over {p.on}", why, _redeclared(self.h, p, on=self.here[0])
        if p.per_channel and (why := self.one_channel):
            return f"the per-channel parameter '{p.name}'", why, _redeclared(self.h, p, per_channel=False)
        return None

    @property
    def one_channel(self) -> str:
        """Why no parameter here may have a value per channel; '' if it may."""
        return "the decomposition has one channel" if len(self.h.decomposition.channels) == 1 else ""

    def sum(self, atom: Count | Total) -> Problem | None:
        if atom.over not in self.here:
            return f"{atom}, a sum over '{atom.over}'", self.why_not(atom.over), f"use over= one of {_names(self.here)}"
        if atom.of != atom.over and not (isinstance(atom.of, Stratum) and atom.over in self.all.coarser(atom.of)):
            return f"{atom}", f"no '{atom.of}' lies over a '{atom.over}'", f"the strata are {_names(self.h.strata)}"
        return None

    def attribute(self, atom: Attribute) -> Problem | None:
        if atom.on in self.here:
            return None
        return (
            f"attribute '{atom.name}' of {atom.on}",
            self.why_not(atom.on),
            f"use total({atom.name}), which is one number per {self.stratum}"
            if self.stratum in self.h.coarser(atom.on)
            else f"declare Attribute({atom.name!r}, on={self.stratum})",
        )

    def density(self, atom: Density) -> Problem | None:
        if atom.channel is not None and (missing := self.missing_channel(atom, atom.channel)):
            return missing
        if atom.stratum in self.coarser:
            return None
        if atom.stratum == self.stratum:
            return (
                f"{atom}, the density of its own stratum",
                "two siblings with equal residuals would be gated differently",
                "read `residual`, or the density of a coarser stratum",
            )
        return (
            f"{atom}",
            self.why_not(atom.stratum),
            f"use one of {_names(self.coarser)}"
            if self.coarser
            else f"what lies over {an(self.stratum)} is summed in its residual; to gate it alone, put the gate there",
        )

    def reading(self, atom: Reading) -> Problem | None:
        if atom in (residual, channel_sign):
            return None
        if atom != advantage:
            return f"'{atom}'", "a gate sees densities, not raw log ratios", "read `residual`"
        if self.stratum in self.h.leaves or self.h.rows in self.here:
            return None
        return (  # an element that does not lie over one row may hold several
            "its advantage",
            f"{an(self.stratum)} of two trajectories with advantages +1 and -1 has no single advantage",
            f"put the gate that reads it on {', '.join(s.name for s in self.h.leaves)} or {self.h.rows}",
        )

    def log_prob(self, atom: LogProb) -> Problem | None:
        if not atom.policy.is_frozen:
            return f"'{atom}'", "a gate sees densities, not raw log-probs", "read `residual`"
        if self.stratum in self.h.leaves:
            return None
        why = f"two tokens over one {self.stratum} would have to agree"
        return f"'{atom}'", why, f"read a statistic, as mean({atom}), or put the gate on {_names(self.h.leaves)}"

    def statistic(self, atom: Aggregate) -> Problem | None:
        if atom.over not in self.places:
            remedy = f"use over= one of {_names(self.places)}"
            return f"{atom}, a statistic over '{atom.over}'", self.why_not(atom.over), remedy
        if not atom.others or atom.of in self.places:
            return None
        why = f"{an(self.stratum)} is no single {atom.of} that is left out"
        return f"{atom}, of all others", why, f"read the mean of all, or of= one of {_names(self.places)}"

    def order(self, atom: Ordered) -> Problem | None:
        if atom.of is None and self.stratum not in self.h.leaves:
            why = f"tokens are ordered, and {an(self.stratum)} has several"
            return f"{atom}, an order of tokens", why, f"order elements of it: of={self.stratum}"
        if atom.of is not None and atom.of not in self.places:
            remedy = f"use of= one of {_names(self.places)}"
            return f"{atom}, an order of '{atom.of}'", self.why_not(atom.of), remedy
        if atom.of is None and atom.over not in self.places:
            why = f"no {self.stratum} lies over a '{atom.over}'"
            return f"{atom}, an order over '{atom.over}'", why, f"use over= one of {_names(self.places)}"
        return None

    def gated(self, atom: Gated) -> Problem | None:
        return f"'{atom}'", "only a recovery reads gated densities", "read `residual`"

    def why_not(self, other: object) -> str:
        """Why one element cannot read values of the elements of another stratum."""
        if isinstance(other, Stratum) and self.stratum in self.h.coarser(other):
            return f"two {plural(other.name)} over one {self.stratum} would have to agree"
        return f"no {self.stratum} lies over a '{other}'"

    def missing_channel(self, atom: Expression, channel: str) -> Problem | None:
        channels = self.h.decomposition.channels
        if channel in channels:
            return None
        if channels == ("",):
            return f"'{atom}'", "the decomposition has one channel", 'write density(stratum), gated("")'
        return f"'{atom}'", f"the channels are {', '.join(map(repr, channels))}", "name one of them"


class Weight(Reader):
    """What a kernel weight may read: nothing of the policy."""

    remedy = "write uniform(), or proportional(m) of a count or of the total of an attribute"

    def parameter(self, atom: Parameter | Component) -> Problem | None:
        p = atom.parameter if isinstance(atom, Component) else atom
        if p.on == self.stratum:
            return (
                f"parameter '{p.name}', which varies over {p.on}",
                f"two {plural(self.stratum.name)} of one fibre may have different values, and the weights another sum",
                _redeclared(self.h, p, on=next(iter(self.coarser), None)),
            )
        return super().parameter(atom)

    one_channel = "a kernel weight is the same on both channels"

    def policy(self, atom: Any) -> Problem | None:
        if atom == mass:
            return f"'{atom}'", "the mass is what the kernels spread: this one would define itself", "read counts"
        why = "the weight would change with the policy, and the pushforward of a kernel with it"
        return f"'{atom}'", why, self.remedy

    def tokens(self, atom: Any) -> Problem | None:
        why = "kernels spread one measure, whatever policies say of its tokens"
        return f"'{atom}'", why, self.remedy

    def order(self, atom: Ordered) -> Problem | None:
        why = "kernels spread one measure, in whatever order its elements come"
        return f"'{atom}'", why, self.remedy

    density = reading = gated = policy
    log_prob = statistic = tokens


class Scale(Weight):
    """What the scale of a decomposition may read: what a kernel weight may read."""

    remedy = "write a scale of counts, attributes and parameters"


class Densities(Reader):
    """What `F` may read on a leaf: the log ratio and the advantage of one token, and ordered sums of them."""

    READS: tuple[Reading, ...] = (token_log_ratio, advantage)
    one_channel = "F and R are one formula for a token, on all of its channels"

    def other(self, atom: Any) -> Problem | None:
        reads = " and ".join(r.name for r in self.READS)
        why = "a decomposition is of one token's ratio, before and after the gates"
        return f"'{atom}'", why, f"read {reads}; put the rest into a gate, or into objective.weigh(...)"

    def reading(self, atom: Reading) -> Problem | None:
        return None if atom in self.READS else self.other(atom)

    def order(self, atom: Ordered) -> Problem | None:
        inside = type(self)(self.h, atom.of) if isinstance(atom.of, Stratum) else self
        read = (inside.problem(a) for a in atoms(atom.formula))
        return super().order(atom) or next(filter(None, read), None)

    density = gated = log_prob = statistic = other


class Recovery(Densities):
    """What `R` may read on a leaf: gated densities instead of the log ratio."""

    READS = (advantage,)

    def gated(self, atom: Gated) -> Problem | None:
        return self.missing_channel(atom, atom.channel)

    def order(self, atom: Ordered) -> Problem | None:
        why = "a recovery gets one token's ratio back from its own densities"
        return f"'{atom}'", why, "put it into the decomposition's densities, or into a gate"


def _names(strata: tuple[Stratum, ...]) -> str:
    return ", ".join(s.name for s in strata)


LAW = Law("locality", STATEMENT, decide_locality, may_be_given_up=False, needed_by_all=True)
