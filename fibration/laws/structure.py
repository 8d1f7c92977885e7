"""Structure (def:uniform_fibration): the strata form a chain, a tree or a quiver, and every token has one row.

Whether parallel paths of a quiver compose to the same map depends on the data: every index checks it. Paths that end in
the whole batch always agree, since the batch is one element.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import networkx as nx

from fibration.errors import an
from fibration.language.atoms import BATCH, Attribute, Component, Parameter, Stratum, count
from fibration.language.fixed import with_declared
from fibration.language.gates import identity_gate
from fibration.language.hierarchy import Hierarchy
from fibration.language.strata import Balanced, Fibration, MarkovKernel, balanced, proportional, uniform
from fibration.language.traversal import atoms
from fibration.laws.batches.concrete import Witness
from fibration.laws.law import Decision, Law, proved, refuted
from fibration.laws.remedies import Fix, Offers, Otherwise
from fibration.laws.subject import Subject

STATEMENT = (
    "the strata are connected, without a cycle; every token lies over one row; some choice of the strata directly over "
    "a stratum has each of its tokens once; strata in balanced(...) cross and share a coarser stratum; "
    "orthogonalise='projection' has strata that cross; with either, no kernel reads a parameter"
)


def decide_structure(subject: Subject) -> Iterator[Decision]:
    h = subject.hierarchy
    crossing = filter(None, (_not_crossing(h, a) for a in h.assume if isinstance(a, Balanced)))
    fault = _graph_fault(h) or _uncovered(h) or _beside_the_rows(h) or next(crossing, None) or _flat(h) or _unweighed(h)
    yield refuted("hierarchy", *fault[:2], Witness(fault[2])) if fault else proved("hierarchy", shown(h))


def shown(h: Hierarchy) -> str:
    """A chain as one path, any other shape by its edges, and why parallel paths agree."""
    if h.shape.is_chain:
        return " → ".join(s.name for s in reversed(h.order))
    ends = dict.fromkeys((p[0].source, p[-1].target) for p, _ in h.shape.parallel())
    notes = [
        f"paths from {a} to {b} agree, {'into the batch: one element' if b.name == BATCH else 'checked on every index'}"
        for a, b in ends
    ]
    return "; ".join([", ".join(f.name for f in h.fibrations), *notes])


Fault = tuple[str, str | Offers, str]  # what was found, a remedy, a witness


def _graph_fault(h: Hierarchy) -> Fault | None:
    """A cycle, several parts, a fibration declared twice, or rows that are a leaf."""
    g = nx.MultiDiGraph()
    g.add_nodes_from(h.strata)
    g.add_edges_from((f.source, f.target) for f in h.fibrations)
    if not h.shape.is_acyclic:
        steps = [(e[0], e[1]) for e in nx.find_cycle(g)]
        cycle = " → ".join(str(s) for s in (steps[0][0], *(b for _, b in steps)))
        fixes = [edges(h, [], removed=[f]) for f in h.fibrations if (f.source, f.target) in steps]
        return "a cycle", (*fixes, Otherwise("remove one of its fibrations")), f"the cycle {cycle}"
    if not nx.is_weakly_connected(g):
        parts = [", ".join(sorted(map(str, c))) for c in nx.weakly_connected_components(g)]
        one, other = list(nx.weakly_connected_components(g))[:2]
        a, b = (next(s for s in h.order if s in part) for part in (one, other))
        join = edges(h, [Fibration(a, b, uniform())]), Otherwise("join them with a fibration")
        return "several parts", join, f"no path between {{{'} and {'.join(parts)}}}"
    twice = next((f for k, f in enumerate(h.fibrations) if f.name in [g.name for g in h.fibrations[:k]]), None)
    if twice:
        same = [f for f in h.fibrations if f.name == twice.name and f is not twice]
        keep = edges(h, [], removed=same), Otherwise("keep one of them")
        return "a fibration declared twice", keep, f"two fibrations {twice.name}"
    if h.rows in h.leaves:
        rows = [Fix(f"declare rows={s}", lambda s=s: h.replace(rows=s)) for s in h.coarser(h.rows)[:1]]  # type: ignore[misc]
        return (
            f"the rows of the batch are the sampled stratum '{h.rows}'",
            (*rows, Otherwise("declare rows= as a stratum that the sampled one lies over")),
            f"rows={h.rows} has no tokens over it",
        )
    return None


def _uncovered(h: Hierarchy) -> Fault | None:
    """A stratum for which no choice of the strata directly over it has each of its tokens once."""
    for t in h.order:
        sources = list(dict.fromkeys(f.source for f in h.shape.above(t)))
        if not sources or h.shape.covers(t):
            continue
        a, b, both = next(
            (a, b, both)
            for a, b in itertools.combinations(sources, 2)
            if (both := h.shape.leaves_over(a) & h.shape.leaves_over(b))
        )
        leaf = min(both, key=lambda s: s.name)
        shared = (leaf, *h.coarser(leaf))
        fixes = [edges(h, [], removed=[f]) for f in h.fibrations if f.target in (a, b) and f.source in shared]
        return (
            f"{a} and {b} over {t} overlap in part",
            (*fixes, Otherwise(f"let what lies directly over {t} part its tokens")),
            f"{an(leaf)} over one {t} lies over both {a} and {b}, and no choice of "
            f"{', '.join(s.name for s in sources)} has each token over {an(t)} once",
        )
    return None


def _beside_the_rows(h: Hierarchy) -> Fault | None:
    """A leaf that does not lie over the rows, although the rows are a stratum: each token must lie in one row."""
    beside = [leaf for leaf in h.leaves if h.rows in h.strata and h.rows not in h.coarser(leaf)]
    if not beside:
        return None
    return (
        f"rows={h.rows}, over which {' and '.join(s.name for s in beside)} does not lie",
        (
            edges(h, [Fibration(leaf, h.rows, uniform()) for leaf in beside]),
            Otherwise("declare rows= as another stratum, which needs no gate"),
        ),
        f"{an(beside[0])} in the first row does not lie over {h.rows} 1",
    )


def _not_crossing(h: Hierarchy, assumed: Balanced) -> Fault | None:
    """An assumption of balance about strata that do not cross."""
    a, b = assumed.first, assumed.second
    without = (Fix(f"remove {assumed!r}", lambda: h.replace(assume=[a for a in h.assume if a != assumed])),)
    for fine, coarse in ((a, b), (b, a)):
        if coarse in h.coarser(fine):
            return (
                f"{assumed!r}, where {fine} lies over {coarse}",
                without,
                f"every {fine} lies over one {coarse}: the two do not cross",
            )
    if not set(h.shape.finer(a)) & set(h.shape.finer(b)):
        return (
            f"{assumed!r}, where nothing lies over both",
            without,
            f"no element lies over {an(a)} and over {an(b)}: the two do not cross",
        )
    if not h.shape.meets(a, b):
        return (
            f"{assumed!r}, without a stratum that both lie over",
            common_coarsening(h, a, b),
            f"frequencies are proportional within an element of a common coarser stratum: {a} and {b} have none",
        )
    return None


def _flat(h: Hierarchy) -> Fault | None:
    if h.orthogonalise is None or not h.shape.is_tree:
        return None
    plain = Fix("write orthogonalise=None: a tree's residuals are orthogonal", lambda: h.replace(orthogonalise=None))
    return (
        "orthogonalise='projection', where nothing crosses",
        (plain,),
        f"no stratum of {', '.join(s.name for s in h.order)} lies directly over two others",
    )


def _unweighed(h: Hierarchy) -> Fault | None:
    """Masses that an index needs and that read a parameter: parameters have values only in a call."""
    readers = [repr(a) for a in h.assume if isinstance(a, Balanced)]
    readers += ["orthogonalise='projection'"] if h.orthogonalise is not None else []
    if not readers:
        return None
    read = (a for leaf in h.leaves for a in atoms(h.masses[leaf], Parameter, Component))
    parameter = next((a.parameter if isinstance(a, Component) else a for a in read), None)
    if not isinstance(parameter, Parameter):
        return None
    attribute = Attribute(parameter.name, on=h.rows, upper=parameter.upper)
    rest: dict[str, Any] = {"orthogonalise": None, "assume": [a for a in h.assume if not isinstance(a, Balanced)]}
    return (
        f"{readers[0]} needs the masses of a batch, and a kernel reads the parameter '{parameter}'",
        (
            Fix(f"write {parameter} = {attribute.declaration()}", lambda: with_declared(h, {parameter: attribute})),
            Fix(f"leave {' and '.join(readers)} out", lambda: h.replace(**rest)),
        ),
        f"an index is built before parameters have values: none can be built, whatever '{parameter}' is",
    )


def common_coarsening(h: Hierarchy, a: Stratum, b: Stratum) -> Offers:
    """The remedy for two strata without a common coarser one; where residuals are not orthogonal by that, with more."""
    batch = Stratum(BATCH)
    missing = [Fibration(s, batch, spread(h)) for s in (a, b) if batch not in h.coarser(s)]
    plain = edges(h, missing, f"a common coarsening of {a} and {b}: ")
    return plain, *and_balanced(h, plain, a, b), Otherwise(f"add a common coarsening of {a} and {b}")


def through_pairs(h: Hierarchy, u: Stratum, w: Stratum, crossing: tuple[Stratum, ...]) -> Offers:
    """The remedy for `u` and `w` that lie over several strata which cross: one stratum of pairs between them."""
    pairs = Stratum("_".join(s.name for s in crossing))
    old = [f for f in h.fibrations if f.target in crossing]
    finer = dict.fromkeys(f.source for f in old)
    new = [*(Fibration(s, pairs, spread(h)) for s in finer), *(Fibration(pairs, s, spread(h)) for s in crossing)]
    plain = edges(h, new, removed=old)
    return plain, *and_balanced(h, plain, u, w), Otherwise(f"let {u} and {w} lie over one stratum of pairs, {pairs}")


def in_one_chain(h: Hierarchy, u: Stratum, w: Stratum) -> Fix:
    """The fix that takes `w` out, with a stratum of pairs over `u` for what lay over both."""
    cell = next((s for s in h.strata if s.name in (f"{u}_{w}", f"{w}_{u}")), Stratum(f"{u}_{w}"))
    finer = [s for s in h.strata if s != cell and {u, w} <= {f.target for f in h.shape.below(s)}]
    old = [f for f in h.fibrations if w in (f.source, f.target) or (f.target == u and f.source in finer)]
    new = [Fibration(a, b, spread(h)) for a, b in (*((s, cell) for s in finer), (cell, u)) if cell not in h.strata]
    return edges(h, new, removed=old)


def and_balanced(h: Hierarchy, fix: Fix, a: Stratum, b: Stratum) -> list[Fix]:
    """The same fix with the assumption that two strata are balanced, if that is not assumed."""
    assume = [*h.assume, balanced(a, b)]
    more = Fix(f"{fix.words}, and assume={assume}", lambda: fix.mended().replace(assume=assume))
    return [] if {balanced(a, b), balanced(b, a)} & set(h.assume) else [more]


def spread(h: Hierarchy) -> MarkovKernel:
    """The kernel of one measure for every edge, where the tokens are of one kind."""
    return proportional(count(h.leaves[0])) if len(h.leaves) == 1 else uniform()


def edges(h: Hierarchy, added: Sequence[Fibration], what: str = "", removed: Sequence[Fibration] = ()) -> Fix:
    """The fix that removes fibrations and adds some. A stratum that it brings has the identity gate."""
    kept = [f for f in h.fibrations if all(f is not r for r in removed)]
    met = dict.fromkeys(s for f in (*kept, *added) for s in (f.source, f.target))
    new = [s for s in met if s not in h.gates]
    less = f"remove {' and '.join(map(repr, removed))}" * bool(removed)
    strata = "".join(f"strata({s.name!r}) with " for s in new)
    more = f"add {what}{strata}{' and '.join(map(repr, added))}" * bool(added)
    words = " and ".join(filter(None, (less, more))) + "".join(f", {s}: {identity_gate()} in gates" for s in new)

    def mended() -> Hierarchy:
        gates = {s: h.gates.get(s, identity_gate()) for s in met or h.gates}
        return h.replace(fibrations=[*kept, *added], gates=gates)

    return Fix(words, mended)


LAW = Law("structure", STATEMENT, decide_structure, may_be_given_up=False, needed_by_all=True)
