"""Structure: the fibrations form a chain from the sampled stratum to one root (def:uniform_fibration)."""

from __future__ import annotations

from collections.abc import Iterator

import networkx as nx

from fibration.laws.concrete import Witness
from fibration.laws.law import Law, Subject
from fibration.report import Status, Verdict
from fibration.spec import Hierarchy

STATEMENT = "the fibrations are acyclic and connected, and lead from the sampled stratum to one root"


def graph(hierarchy: Hierarchy) -> nx.MultiDiGraph:
    """Strata as vertices, fibrations as edges towards the root."""
    g = nx.MultiDiGraph()
    g.add_nodes_from(s.name for s in hierarchy.strata)
    g.add_edges_from((f.source.name, f.target.name) for f in hierarchy.fibrations)
    return g


def decide(subject: Subject) -> Iterator[Verdict]:
    h = subject.hierarchy
    g = graph(h)
    problem = _problem(h, g)
    if problem is None:
        yield Verdict("structure", "hierarchy", "proved", " → ".join(s.name for s in reversed(h.chain)))
    else:
        status, found, remedy, witness = problem
        yield Verdict(
            "structure",
            "hierarchy",
            status,
            "",
            required=STATEMENT,
            found=found,
            remedy=remedy,
            counterexample=None if witness is None else Witness(witness),
        )


def _problem(h: Hierarchy, g: nx.MultiDiGraph) -> tuple[Status, str, str, str | None] | None:
    if not nx.is_directed_acyclic_graph(g):
        edges = [(e[0], e[1]) for e in nx.find_cycle(g)]
        cycle = " → ".join([edges[0][0], *(b for _, b in edges)])
        return "refuted", "a cycle", "remove one of its fibrations", f"the cycle {cycle}"
    if not nx.is_weakly_connected(g):
        parts = [", ".join(sorted(c)) for c in nx.weakly_connected_components(g)]
        return "refuted", "several parts", "join them with a fibration", f"no path between {{{'} and {'.join(parts)}}}"
    for s in g:
        if g.out_degree(s) > len(set(g.successors(s))):
            other = next(t for t in g.successors(s) if g.number_of_edges(s, t) > 1)
            return "refuted", "a fibration declared twice", "keep one", f"two fibrations {s} → {other}"
    if h.rows == h.leaf and len(h.leaves) == 1:
        return (
            "refuted",
            f"the rows of the batch are the sampled stratum '{h.leaf}'",
            "declare rows= as a stratum that the sampled one lies over",
            f"rows={h.rows} has no tokens over it",
        )
    for s in g:
        for kind, near in (("lies over", list(g.successors(s))), ("has over it", list(g.predecessors(s)))):
            if len(near) > 1:
                return (
                    "undecided",
                    f"{s} {kind} {' and '.join(sorted(near))}",
                    "this version decides the laws of chains; declare a chain",
                    None,
                )
    return None


LAW = Law("structure", STATEMENT, decide, may_be_given_up=False, foundation=True)
