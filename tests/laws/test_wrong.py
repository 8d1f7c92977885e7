"""Wrong specs do not compile, undecidable ones are undecided, and an exception of the library is no counterexample.

That each wrong spec is refused by the law it breaks is tested in the file of that law.
"""

import copy
import dataclasses
import pickle
import re
from fractions import Fraction
from pathlib import Path

import pytest
from hierarchies import builders, wrong_specs
from oracles import quiver_verdicts, verdicts
from oracles.verdicts import counterexamples_hold, report

from fibration import (
    Fibration,
    Gate,
    Hierarchy,
    LawError,
    MarkovKernel,
    compile,
    decomposition,
    exp,
    gated,
    identity_gate,
    log_ratio,
    ratio_deviation,
    residual,
    strata,
    token_log_ratio,
    token_mean,
    trajectory_mean,
    uniform,
)  # fmt: skip
from fibration.language.exact import transcendental
from fibration.language.operators import OPERATORS, PRIMITIVES, Primitive
from fibration.language.traversal import atoms
from fibration.laws.batches.concrete import rounding
from fibration.laws.values.numerals import in_full, rounded, shown, written
from fibration.laws.verify import Incomplete, decide

token, trajectory = strata("token trajectory")
WRONG, QUIVERS = verdicts.WRONG, quiver_verdicts.WRONG
UNDECIDABLE = wrong_specs.undecidable()


@pytest.mark.parametrize("name", ["one too many in the denominator", "residual against the gated base", "self-loop"])
def test_a_wrong_spec_does_not_compile(name):
    with pytest.raises(LawError):
        compile(WRONG[name].hierarchy)


@pytest.mark.sampled
@pytest.mark.parametrize("name", UNDECIDABLE)
def test_undecidable_hierarchies_are_undecided_and_not_accepted(name):
    spec, found = UNDECIDABLE[name], report(name)
    verdict = next(v for v in found.verdicts if (v.law, v.subject) == (spec.law, spec.subject))
    assert verdict.status == "undecided", found
    assert not found.ok
    assert verdict.remedy
    with pytest.raises(LawError, match="could not be shown"):
        raise verdict.error(spec.hierarchy.name)


@pytest.mark.sampled
@pytest.mark.parametrize("name", UNDECIDABLE)
def test_counterexamples_of_undecidable_hierarchies_hold(name):
    found = report(name)
    counterexamples_hold(UNDECIDABLE[name].hierarchy, found)
    verdicts.causes_hold(found)


SEARCHED = {  # a law that is refuted by numbers, and a spec for which it has to look for them
    "markov": WRONG["negative by an attribute"].hierarchy,
    "reflecting": WRONG["one too many in the denominator"].hierarchy,
    "coherent": QUIVERS["kernels that do not cohere"].hierarchy,
    "objective": WRONG["objective that divides by 0 in a batch of two rows"].hierarchy,
    "recovery": WRONG["recovery without its scale"].hierarchy,
    "identity": WRONG["sigmoid that is not centred"].hierarchy,
    "first_order": builders.one(
        identity_gate(), decomposition(density=builders.x + 1, recovery=exp(gated("") - 1)), gives_up={"identity": "F(1) is not 0"}
    ).replace(objective=token_mean().score()),
    "positivity": WRONG["amplified fall"].hierarchy,
    "orthogonality": QUIVERS["unbalanced crossing"].hierarchy,
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("error", [TypeError, AttributeError, KeyError, ZeroDivisionError, OverflowError])
@pytest.mark.parametrize("law", SEARCHED)
def test_an_exception_in_an_operator_is_an_error_and_no_counterexample(law, error, monkeypatch):
    assert next(v.law for v in SEARCHED[law].verify().verdicts if not v.accepted) == law

    def broken(*_):
        raise error("planted")

    for table in (OPERATORS, PRIMITIVES):  # by its name in formulas, and by its name in the IR
        for name, row in table.items():
            if isinstance(row, Primitive):
                monkeypatch.setitem(table, name, dataclasses.replace(row, exact=broken))
    with pytest.raises(Incomplete) as raised:  # what is found with a defect is not kept
        decide(SEARCHED[law])
    defects = [v for v in raised.value.found if v.internal_error]
    assert any(error.__name__ in v.found and "planted" in v.found for v in defects)
    assert all(v.status == "undecided" and v.counterexample is None for v in defects)
    refuted = {v.law for v in raised.value.found if v.status == "refuted"}
    assert refuted <= {"first_order"}  # told by its estimator


def test_the_collection_is_large_and_varied():
    assert len(WRONG) >= 120
    laws = {w.law for w in WRONG.values()}
    assert laws == {
        "structure", "locality", "markov", "reflecting", "recovery", "identity", "first_order", "positivity", "given_up",
        "gradient", "objective", "inward",
    }  # fmt: skip
    assert sum(1 for w in WRONG.values() if w.law == "reflecting") >= 25
    assert all(any(True for _ in atoms(f.weight)) for w in WRONG.values() for f in w.hierarchy.fibrations)


FILES = {"given_up": "verify"}  # decided where the laws are put together


@pytest.mark.parametrize(
    ("call", "rows"), [("verdicts.wrong_specs", WRONG), ("quiver_verdicts.wrong_quivers", QUIVERS)]
)
def test_every_wrong_spec_is_run_by_the_file_of_its_law(call, rows):
    for law in {spec.law for spec in rows.values()}:
        source = (Path(__file__).parent / f"test_{FILES.get(law, law)}.py").read_text()
        assert f'@{call}("{law}")\ndef test_wrong_' in source


HUGE = {
    "recovery": {"decomposition": decomposition(density=token_log_ratio, recovery=exp(1000 * gated("")))},
    "identity": {"gates": {token: Gate(residual + exp(1000)), trajectory: identity_gate()}},
    "first_order": {"gates": {token: Gate(residual + exp(1000)), trajectory: identity_gate()}},
    "positivity": {
        "decomposition": ratio_deviation(),
        "gates": {token: Gate(-exp(10_000 * residual))},
        "fibrations": [],
    },
    "markov": {"fibrations": [Fibration(token, trajectory, MarkovKernel(-exp(10_000)))]},
    "reflecting": {"fibrations": [Fibration(token, trajectory, MarkovKernel(exp(10_000)))]},
}


@pytest.mark.sampled
@pytest.mark.parametrize("law", HUGE)
def test_a_counterexample_prints_numbers_beyond_float64(law):
    plain = Hierarchy(
        name="plain", fibrations=[Fibration(token, trajectory, uniform())], decomposition=log_ratio(),
        gates={token: identity_gate(), trajectory: identity_gate()}, objective=trajectory_mean(),
    )  # fmt: skip
    found = plain.replace(**HUGE[law]).verify()
    verdict = next(v for v in found.verdicts if v.law == law and v.status == "refuted")
    assert re.search(r"\d\.\d{1,5}e\+\d{3}", str(verdict.counterexample)), verdict.counterexample
    assert verdict.counterexample.to_dict()["text"] == str(verdict.counterexample)


TINY = rounding(exp(residual))


def test_numbers_are_printed_exactly_or_with_six_digits():
    assert [shown(Fraction(n)) for n in ("0", "2", "1/3", "-1e-7")] == ["0", "2", "0.333333", "-1e-07"]
    assert [shown(s * Fraction(10) ** n) for s, n in ((7, 400), (-7, -400))] == ["7.0e+400", "-7.0e-400"]
    assert [in_full(Fraction(n)) for n in ("1/3", "3", "-1e-50")] == ["1/3", "3", f"-1/{10**50}"]
    assert in_full(Fraction(10) ** 5000) == "1.0e+5000"
    root, tiny = transcendental("sqrt")(Fraction(2)), Fraction(1, 10**40)
    assert [in_full(rounded(v, TINY)) for v in (root, Fraction(1, 3), 1 + tiny)] == ["1.41421", "1/3", f"1.{'0' * 39}1"]


def test_numbers_in_json_are_exact_or_have_fifty_digits():
    """Rationals are exact. Exponentials, logarithms and roots have fifty digits."""
    exact = Fraction(1, 3), Fraction(3), -Fraction(1, 10**60), Fraction(7**900, 2**1000)
    assert [Fraction(written(v)) for v in exact] == list(exact)
    assert written([Fraction(1, 3), None, 2, "gate", (Fraction(-1),)]) == ["1/3", None, 2, "gate", ["-1"]]
    root = transcendental("sqrt")(Fraction(2))
    assert written(root) == str(root)
    assert written(rounded(root, TINY)) == "1.4142135623730950488016887242096980785696718753769"
    assert written(rounded(Fraction(1, 3), TINY)) == "1/3"
    assert len(written(Fraction(10) ** 5000)) < 60
    assert Fraction(written(Fraction(10) ** 5000)) == Fraction(10) ** 5000
    assert rounded(root, Fraction(0)) is root
    for again in (pickle.loads(pickle.dumps(rounded(root, TINY))), copy.deepcopy(rounded(root, TINY))):
        assert written(again) == written(rounded(root, TINY))
