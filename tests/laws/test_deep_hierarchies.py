"""Deep and broad hierarchies have the verdicts and facts of small ones."""

import itertools

import pytest

from fibration import (
    Fibration,
    Hierarchy,
    MarkovKernel,
    Parameter,
    Stratum,
    clip_gate,
    count,
    log_ratio,
    mass,
    proportional,
    signed_log_ratio,
    strata,
    trajectory_mean,
    uniform,
)


def levels(n):
    return strata(" ".join(f"level{i}" for i in range(n)))


def chain(n):
    s = levels(n)
    return Hierarchy(
        name="chain", fibrations=[Fibration(a, b, uniform()) for a, b in itertools.pairwise(s)],
        gates={x: clip_gate(0.1) for x in s}, decomposition=log_ratio(scale=mass), objective=trajectory_mean(), rows=s[1],
    )  # fmt: skip


def mixed(n):
    """One measure is spread by kernels of two kinds, and every level has a parameter of its own."""
    s = levels(n)
    kernels = [uniform() if i % 2 else proportional(count(s[0])) for i in range(n - 1)]
    return Hierarchy(
        name="mixed", fibrations=[Fibration(a, b, k) for (a, b), k in zip(itertools.pairwise(s), kernels, strict=True)],
        gates={x: clip_gate(Parameter(f"c{i}", default=0.1)).per(mass) for i, x in enumerate(s)},
        decomposition=signed_log_ratio(scale=mass), objective=trajectory_mean(), rows=s[1],
    )  # fmt: skip


def nested(n):
    """A binary tree, whose weights are joint counts at each of its nodes."""
    row = list(strata(" ".join(f"leaf{i}" for i in range(n))))
    every, fibrations = list(row), []
    while len(row) > 1:
        targets = [Stratum(f"node{len(every) + i}") for i in range(len(row) // 2)]
        for target, pair in zip(targets, zip(row[::2], row[1::2], strict=True), strict=True):
            joint = count(pair[0], over=target) + count(pair[1], over=target)
            fibrations += [Fibration(x, target, MarkovKernel(1 / joint)) for x in pair]
        every, row = every + targets, targets
    return Hierarchy(
        name="nested", fibrations=fibrations, gates={x: clip_gate(0.1) for x in every},
        decomposition=log_ratio(scale=mass), objective=trajectory_mean(), rows=row[0],
    )  # fmt: skip


def values(report, kind):
    return [f.value for f in report.facts if f.name == kind]


@pytest.mark.sampled
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("make", "small", "large"), [(chain, 4, 14), (mixed, 4, 10), (nested, 4, 8)], ids=["chain", "mixed", "nested"]
)
def test_depth_and_breadth_change_no_verdict_and_no_fact(make, small, large):
    few, many = make(small).verify(), make(large).verify()
    assert all(v.status == "proved" for r in (few, many) for v in r.verdicts)
    for kind in ("continuity", "restorative"):
        assert set(values(few, kind)) == set(values(many, kind))
    # one for each level, and one for each leaf in total
    assert [len(values(r, "bounds")) for r in (few, many)] == [len(r.hierarchy.strata) + len(r.hierarchy.leaves)
                                                             for r in (few, many)]  # fmt: skip
    assert len(values(few, "radius")) == len(values(many, "radius")) == 1


@pytest.mark.parametrize("depth", [8, 30])
def test_a_wrong_kernel_at_the_bottom_of_a_deep_chain_is_refuted(depth):
    h = chain(depth)
    first, *rest = h.fibrations
    wrong = Fibration(first.source, first.target, MarkovKernel(1 / (1 + count(first.source, over=first.target))))
    found = h.replace(fibrations=[wrong, *rest]).verify()
    assert [v.subject for v in found.verdicts if v.law == "reflecting" and v.status == "refuted"] == [
        f"kernel {wrong.name}"
    ]
