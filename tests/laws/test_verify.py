"""Laws in their order: what stops the rest, what may be given up, and that a second run says the same."""

import pickle

import pytest
from hierarchies import zoo
from hierarchies.right import SHIPPED
from oracles import verdicts

from fibration import Hierarchy, SpecError, load
from fibration.laws.verify import decide

WRONG = verdicts.WRONG


def test_foundations_stop_the_rest():
    """Laws that build on structure or locality are not asked when these fail."""
    for spec in WRONG.values():
        if spec.law in ("structure", "locality"):
            found = spec.hierarchy.verify()
            laws = ["structure", "locality"][: ["structure", "locality"].index(spec.law) + 1]
            assert {v.law for v in found.verdicts} <= set(laws)
            assert not found.facts


def test_verification_is_repeatable():
    """The same verdicts and counterexamples on a second run."""
    for name in ("negative by an attribute", "right for pairs only", "slope 2 below", "dip between breakpoints"):
        h = WRONG[name].hierarchy
        assert [str(v.counterexample) for v in decide(h)] == [str(v.counterexample) for v in h.verify().verdicts]


def test_declared_exceptions_cover_only_what_they_name():
    """Giving up first order lets a zero gate pass, and nothing else."""
    kept = zoo.two(inner=zoo.zero_gate(), gives_up={"first_order": "tokens follow their trajectory"}).verify()
    assert kept.ok
    assert {v.law for v in kept.verdicts if v.given_up} == {"first_order", "identity"}
    wrong_kernel = zoo.two(1 / (zoo.T + 1), inner=zoo.zero_gate(), gives_up={"first_order": "tokens follow"}).verify()
    assert not wrong_kernel.ok
    assert {v.law for v in wrong_kernel.failures} == {"reflecting", "orthogonality"}
    split = zoo.decomposition(density=2 * zoo.x, recovery=zoo.exp(zoo.gated("")))
    wrong_recovery = zoo.two(split=split, gives_up={"first_order": "why not"}).verify()
    assert {v.law for v in wrong_recovery.failures} == {"recovery"}


@pytest.mark.parametrize("law", ["structure", "locality", "markov", "reflecting"])
def test_foundations_cannot_be_given_up(law):
    with pytest.raises(SpecError):
        zoo.two(gives_up={law: "because"})


def test_reports_survive_pickling():
    found = WRONG["padded length"].hierarchy.verify()
    again = pickle.loads(pickle.dumps(found.to_dict()))
    assert again == found.to_dict()
    assert again["ok"] is False


@pytest.mark.parametrize("name", SHIPPED)
def test_laws_survive_json(name):
    """A spec that was written and read verifies alike."""
    h = load(name)
    again = Hierarchy.model_validate_json(h.model_dump_json()).verify()
    assert str(again) == str(h.verify())


@verdicts.wrong_specs("given_up")
def test_wrong_specs_are_refused(name):
    verdicts.refused(name)
