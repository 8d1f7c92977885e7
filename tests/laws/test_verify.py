"""The order of the laws, laws that stop later ones, reasons, and repeatability."""

import pickle

import pytest
from hierarchies import builders, quivers
from hierarchies.right import SHIPPED
from oracles import verdicts

from fibration import Hierarchy, LawError, SpecError, decomposition, exp, gated, load, residual, zero_gate
from fibration.language.report import Cause, Report, Verdict
from fibration.laws.verify import decide

WRONG = verdicts.WRONG


def test_laws_after_a_failed_foundation_are_not_decided():
    """The foundations here are structure and locality."""
    for spec in WRONG.values():
        if spec.law in ("structure", "locality"):
            found = spec.hierarchy.verify()
            laws = ["structure", "locality"][: ["structure", "locality"].index(spec.law) + 1]
            assert {v.law for v in found.verdicts} <= set(laws)
            assert not found.facts


@pytest.mark.thorough
def test_verification_is_repeatable():
    """A second run has the same verdicts and counterexamples."""
    for name in ("negative by an attribute", "right for pairs only", "slope 2 below", "dip between breakpoints"):
        h = WRONG[name].hierarchy
        assert [str(v.counterexample) for v in decide(h)] == [str(v.counterexample) for v in h.verify().verdicts]


def test_a_reason_covers_only_the_law_that_it_names():
    """Giving up first_order accepts a zero gate, and nothing else."""
    kept = builders.two(inner=zero_gate(), gives_up={"first_order": "tokens follow their trajectory"}).verify()
    assert kept.ok
    assert {v.law for v in kept.verdicts if v.given_up} == {"first_order", "identity"}
    wrong_kernel = builders.two(
        1 / (builders.T + 1), inner=zero_gate(), gives_up={"first_order": "tokens follow"}
    ).verify()
    assert not wrong_kernel.ok
    assert {v.law for v in wrong_kernel.failures} == {"reflecting", "gradient", "orthogonality"}
    split = decomposition(density=2 * builders.x, recovery=exp(gated("")))
    wrong_recovery = builders.two(split=split, gives_up={"first_order": "why not"}).verify()
    assert {v.law for v in wrong_recovery.failures} == {"recovery", "gradient"}


# ---------------------------------------------------------------- causes, and what follows from them

T = builders.T
NO_VALUE = 1 / (T - 1)
FOLLOWING = {  # a slip, the verdict on it, and what fails along with it
    "sum": (builders.two(1 / (T + 1)), "reflecting", "orthogonality of residual on token"),
    "value": (
        builders.two(NO_VALUE),
        "markov",
        "reflecting of kernel token → trajectory, first_order, gradient, orthogonality of residual on token, positivity, "
        "inward of gate on trajectory",
    ),
    "gate": (builders.two(inner=zero_gate()), "identity", "first_order"),
    "gate without a value": (
        builders.one(residual / (builders.budget - builders.budget)),
        "identity",
        "first_order, gradient, positivity, inward of gate on token",
    ),
    "recovery": (
        WRONG["recovery scaled twice over"].hierarchy,
        "recovery",
        "first_order, gradient of decomposition",
    ),
    "recovery far off": (WRONG["first order of the exponential"].hierarchy, "recovery", "positivity"),
    "crossing": (
        quivers.wrong()["a kernel of a crossing that does not sum to 1"].hierarchy,
        "reflecting",
        "coherent, orthogonality of residual on token, residual on trajectory, residual on domain and residual on modality",
    ),
    "paths": (
        quivers.wrong()["a shortcut that does not cohere"].hierarchy,
        "coherent",
        "orthogonality of residual on token and residual on turn",
    ),
}


@pytest.mark.sampled
@pytest.mark.parametrize("slip", FOLLOWING)
def test_one_fault_is_one_cause(slip):
    h, law, along = FOLLOWING[slip]
    found = h.verify()
    (cause,) = found.causes
    assert (cause.law, found.so_too(cause)) == (law, along)
    with pytest.raises(LawError) as caught:
        found.raise_for_status()
    assert f"breaks the law '{law}'" in str(caught.value)
    assert f"\n  so too:   {along}\n" in str(caught.value)
    *_, below = str(found).partition(f"✗ {law}")
    assert f"so too: {along}\n" in below
    assert str(found).count("✗") == 1
    assert [v["law"] for v in found.to_dict()["verdicts"] if not v["accepted"]] == [v.law for v in found.failures]


def test_a_law_with_its_own_reason_is_reported_with_that_reason():
    """Giving up first_order covers the identity of gates. A reason for identity itself comes first."""
    for reasons in ({"identity": "flat", "first_order": "follows"}, {"first_order": "follows", "identity": "flat"}):
        found = builders.two(inner=zero_gate(), gives_up=reasons).verify()
        assert {v.law: v.given_up for v in found.verdicts if v.given_up} == reasons


def test_a_given_up_law_is_no_cause_of_another_failure():
    """A failure that would follow from a given-up law is a cause of its own."""
    h = WRONG["recovery scaled twice over"].hierarchy.replace(gives_up={"recovery": "on purpose"})
    found = h.verify()
    assert {v.law: v.cause for v in found.failures} == {
        "first_order": ("recovery", "decomposition"), "gradient": ("recovery", "decomposition")
    }  # fmt: skip
    assert found.causes == found.failures
    assert not any(found.so_too(v) for v in found.causes)
    with pytest.raises(LawError, match="'gradient'"):
        found.raise_for_status()
    kept = WRONG["recovery scaled twice over"].hierarchy.replace(gives_up={"first_order": "on purpose"}).verify()
    assert [(v.law, kept.so_too(v)) for v in kept.causes] == [("recovery", "gradient of decomposition")]


def test_a_refuted_law_is_raised_before_an_undecided_one():
    def verdict(law, status, cause=None):
        return Verdict(law, "it", status, "", cause=cause and Cause(cause, "it"))

    made = (verdict("markov", "undecided"), verdict("coherent", "refuted", "markov"), verdict("recovery", "refuted"))
    found = Report(builders.two(), made)
    assert [v.law for v in found.causes] == ["markov", "recovery"]
    with pytest.raises(LawError, match="'recovery'"):
        found.raise_for_status()


@pytest.mark.parametrize("law", ["structure", "locality", "markov", "reflecting"])
def test_foundations_cannot_be_given_up(law):
    with pytest.raises(SpecError):
        builders.two(gives_up={law: "because"})


def test_reports_survive_pickling():
    found = WRONG["padded length"].hierarchy.verify()
    again = pickle.loads(pickle.dumps(found.to_dict()))
    assert again == found.to_dict()
    assert again["ok"] is False


@pytest.mark.parametrize("name", SHIPPED)
def test_a_hierarchy_from_json_has_the_same_verdicts(name):
    h = load(name)
    again = Hierarchy.model_validate_json(h.model_dump_json()).verify()
    assert str(again) == str(h.verify())


@verdicts.wrong_specs("given_up")
def test_wrong_specs_are_refused(name):
    verdicts.refused(name)
