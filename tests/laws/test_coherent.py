"""Kernels on parallel paths spread one measure, or a counterexample has an element with two masses."""

import pytest
from hierarchies import quivers
from hierarchies.quivers import CELL, CROSS, NESTED, SHORT, domain, expert, make, n, token, trajectory
from oracles import quiver_verdicts

from fibration import Fibration, uniform
from fibration.laws import LAWS
from fibration.laws.kernels.coherent import mended
from fibration.laws.subject import Subject


@quiver_verdicts.wrong_quivers("coherent")
def test_wrong_quivers_are_refused(name):
    quiver_verdicts.refused(name)


def test_trees_have_no_verdict_on_coherent():
    assert not [v for v in quiver_verdicts.verdicts("tree of one measure") if v.law == "coherent"]


RIGHT = {
    "crossing": make(*CROSS),
    "nested": make(*NESTED),
    "shortcut": make(*SHORT),
    "cell": make(*CELL),
    "tree": quivers.mixed(),
}
# not the leaves', which are uniform as they are, nor what no way leads around
SLIPS = [
    (k, f.name) for k, h in RIGHT.items() for f in h.fibrations if f.source not in h.leaves and f.target != quivers.cell
]


def proved(h):
    """Whether kernels reflect and cohere."""
    subject = Subject(h, [])
    return all(v.status == "proved" for law in ("reflecting", "coherent") for v in LAWS[law].decide(subject))


def changed(h, f, kernel):
    return h.replace(fibrations=[Fibration(g.source, g.target, kernel) if g == f else g for g in h.fibrations])


@pytest.mark.sampled
@pytest.mark.parametrize(("name", "edge"), SLIPS)
def test_the_wrong_kernel_is_named_and_its_remedy_is_accepted(name, edge):
    """This holds for every edge. Every other kernel that the report names can be mended too."""
    right = RIGHT[name]
    wrong = changed(right, next(f for f in right.fibrations if f.name == edge), uniform())
    (found,) = LAWS["coherent"].decide(Subject(wrong, []))
    assert f"the kernel {edge} has the weight" in found.found
    mends = {f: w for f in wrong.fibrations if (w := mended(Subject(wrong, []), f)) is not None}
    assert edge in [f.name for f in mends]
    for f, weight in mends.items():
        assert f"write Fibration({f.source}, {f.target}, kernel=MarkovKernel({weight})) in fibrations" in found.remedy
        assert proved(changed(wrong, f, type(f.kernel)(weight)))


def test_incoherence_has_a_kernel_as_cause_only_if_all_other_kernels_agree():
    broken = (token, expert, 1 / (n(token, expert) + 1))
    alone = make(broken, *NESTED[1:]).verify()
    assert [v.law for v in alone.causes] == ["reflecting"]
    both = make(broken, *NESTED[1:3], (trajectory, domain, uniform()), *NESTED[4:]).verify()
    assert [v.law for v in both.causes] == ["reflecting", "coherent"]
