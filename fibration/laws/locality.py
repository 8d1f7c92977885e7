"""Locality (def:fgh iii): an atomic gate reads its own element, and what that element determines, nothing else."""

from __future__ import annotations

from collections.abc import Iterator

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
    mass,
)
from fibration.language.expressions import Expression
from fibration.language.hierarchy import Hierarchy
from fibration.language.report import Verdict
from fibration.language.traversal import atoms
from fibration.laws.law import Law
from fibration.laws.proof.subject import Subject
from fibration.laws.witness.batches import Concrete, Witness, plural
from fibration.laws.witness.shapes import crossed

STATEMENT = (
    "a gate reads its residual, parameters, counts, its element's attributes and advantage, and densities of coarser "
    "strata; a kernel weight reads parameters, counts and attributes; each at the element or below it"
)


def decide(subject: Subject) -> Iterator[Verdict]:
    h = subject.hierarchy
    for f in h.fibrations:
        yield _verdict(h, f"kernel {f.name}", f.source, f.weight, kernel=True)
    for stratum in h.gates:
        yield _verdict(h, f"gate on {stratum}", stratum, h.gate(stratum))
    for what, expressions, extra in (
        ("decomposition", [e for _, e in h.decomposition.densities], ("token_log_ratio",)),
        ("recovery", [h.decomposition.recovery, h.decomposition.scale], ("gated",)),
    ):
        problems = (
            (leaf, p)
            for leaf in h.leaves
            for e in expressions
            for a in atoms(e)
            # what the mass reads is for the kernels, a parameter too: F and R then change with the hierarchy itself,
            # as the kernels do, and R∘F = id and the cancelling of the scale hold for every value of it
            if a != mass and (p := _leaf_problem(h, leaf, a, extra))
        )
        problem = next(problems, None)
        if problem:
            yield _refuted(h, what, problem[0], *problem[1])
        else:
            yield Verdict("locality", what, "proved", f"reads only the {' or '.join(s.name for s in h.leaves)} itself")


def _verdict(h: Hierarchy, what: str, stratum: Stratum, expression: Expression, kernel: bool = False) -> Verdict:
    for atom in atoms(expression):
        problem = _problem(h, atom, stratum, kernel)
        if problem:
            return _refuted(h, what, stratum, *problem)
    read = [str(a) for a in atoms(expression)]
    return Verdict("locality", what, "proved", f"reads {', '.join(read) or 'nothing'}")


def _refuted(h: Hierarchy, what: str, stratum: Stratum, found: str, witness: str, remedy: str) -> Verdict:
    concrete = _two_over(h)
    return Verdict(
        "locality",
        what,
        "refuted",
        "",
        required=STATEMENT,
        found=found,
        remedy=remedy,
        counterexample=Witness(witness, concrete, {"stratum": stratum.name}),
    )


def _two_over(h: Hierarchy) -> Concrete:
    """The smallest regular hierarchy in which every element but the root has a sibling."""
    return Concrete(h.shape, crossed(h.shape, {s: 1 if s == h.order[0] else 2 for s in h.order}))


def _problem(h: Hierarchy, atom: Expression, stratum: Stratum, kernel: bool) -> tuple[str, str, str] | None:
    here = (stratum, *h.coarser(stratum))
    if isinstance(atom, (Parameter, Component)):
        p = atom.parameter if isinstance(atom, Component) else atom
        if kernel and p.on == stratum:
            return (
                f"parameter '{p.name}', which varies over {p.on}",
                f"two {plural(stratum.name)} of one fibre may have different values, and the weights another sum",
                f"let it vary over one of {_names(here[1:])}" if here[1:] else "declare it without on=",
            )
        if p.on is not None and p.on not in here:
            return (
                f"parameter '{p.name}', which varies over {p.on}",
                f"a {stratum} lies over no single {p.on}",
                f"let it vary over one of {_names(here)}",
            )
        if p.per_channel and (kernel or len(h.decomposition.channels) == 1):
            why = "a kernel weight is the same on both channels" if kernel else "the decomposition has one channel"
            return f"the per-channel parameter '{p.name}'", why, "declare it with per_channel=False"
        return None
    if isinstance(atom, (Count, Total)):
        over = atom.over
        if over not in here:
            return (
                f"{atom}, a sum over '{over}'",
                _finer(h, stratum, over) or f"no {stratum} lies over a '{over}'",
                f"use over= one of {_names(here)}",
            )
        of = atom.of if isinstance(atom, Count) else atom.attribute.on
        if of != over and not (isinstance(of, Stratum) and over in h.coarser(of)):
            return f"{atom}", f"no '{of}' lies over a '{over}'", f"the strata are {_names(h.strata)}"
        return None
    if isinstance(atom, Attribute):
        if atom.on in here:
            return None
        return (
            f"attribute '{atom.name}' of {atom.on}",
            _finer(h, stratum, atom.on) or f"no {stratum} lies over a '{atom.on}'",
            f"use total({atom.name}), which is one number per {stratum}"
            if stratum in h.coarser(atom.on)
            else "declare it on this stratum",
        )
    if kernel and atom == mass:
        return f"'{atom}'", "the mass is what the kernels spread: this one would define itself", "read counts"
    if kernel:
        return (
            f"'{atom}'",
            "the weight would change with the policy, and the pushforward of a kernel with it",
            "weights read counts and attributes",
        )
    if isinstance(atom, Density):
        if atom.channel is not None and atom.channel not in h.decomposition.channels:
            return _no_channel(h, atom)
        if atom.stratum in here[1:]:
            return None
        if atom.stratum == stratum:
            return (
                f"{atom}, the density of its own stratum",
                "two siblings with equal residuals would be gated differently",
                "read `residual`, or the density of a coarser stratum",
            )
        return (
            f"{atom}",
            _finer(h, stratum, atom.stratum) or f"no {stratum} lies over a '{atom.stratum}'",
            f"use one of {_names(here[1:])}"
            if here[1:]
            else f"what lies over a {stratum} is summed in its residual; to gate it alone, put the gate there",
        )
    if isinstance(atom, Reading):
        if atom.name == "residual":
            return None
        if atom.name == "advantage":
            # what does not lie over the rows may hold several of them
            if stratum not in h.leaves and h.rows not in here:
                return (
                    "its advantage",
                    f"a {stratum} of two trajectories with advantages +1 and -1 has no single advantage",
                    f"read it on {', '.join(s.name for s in h.leaves)} or {h.rows}",
                )
            return None
        return f"'{atom}'", "a gate sees densities, not raw log ratios", "read `residual`"
    return f"'{atom}'", "only a recovery reads gated densities", "read `residual`"


def _finer(h: Hierarchy, stratum: Stratum, other: object) -> str:
    if isinstance(other, Stratum) and stratum in h.coarser(other):
        return f"two {plural(other.name)} over one {stratum} would have to agree"
    return ""


def _no_channel(h: Hierarchy, atom: Expression) -> tuple[str, str, str]:
    channels = h.decomposition.channels
    if channels == ("",):
        return f"'{atom}'", "the decomposition has one channel", 'write density(stratum), gated("")'
    return f"'{atom}'", f"the channels are {', '.join(map(repr, channels))}", "name one of them"


def _leaf_problem(h: Hierarchy, leaf: Stratum, atom: Expression, extra: tuple[str, ...]) -> tuple[str, str, str] | None:
    if isinstance(atom, Gated):
        if "gated" not in extra:
            return f"'{atom}'", "a decomposition comes before the gates", "read token_log_ratio"
        if atom.channel not in h.decomposition.channels:
            return _no_channel(h, atom)
        return None
    if isinstance(atom, Reading) and atom.name in extra:
        return None
    if isinstance(atom, Parameter):
        return f"parameter '{atom.name}'", "F and R would change with a setting of the gates", "put it into a gate"
    return _problem(h, atom, leaf, kernel=True)


def _names(strata: tuple[Stratum, ...]) -> str:
    return ", ".join(s.name for s in strata)


LAW = Law("locality", STATEMENT, decide, may_be_given_up=False, foundation=True)
