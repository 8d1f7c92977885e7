"""An exception inside a law, a fact or a comparison gives an undecided verdict that asks for an issue, uncached."""

import logging
from dataclasses import replace

import pytest
from support import invoke

from fibration import (
    Attribute,
    Fibration,
    Gate,
    Hierarchy,
    LawError,
    MarkovKernel,
    Parameter,
    absolute,
    clip,
    clip_gate,
    count,
    equivalent,
    exp,
    identity_gate,
    log,
    log_prob,
    log_ratio,
    mass,
    mean,
    minimum,
    policies,
    proportional,
    residual,
    reward,
    sigmoid,
    signed_log_ratio,
    sqrt,
    strata,
    token_log_ratio,
    token_mean,
    total,
    uniform,
    where,
)
from fibration.cache import NOTES, Recent
from fibration.language.atoms import Stratum
from fibration.language.expressions import ExpressionTooLarge, as_expression
from fibration.laws import LAWS, catalogue, kept
from fibration.laws import verify as module
from fibration.laws.budget import Stopped
from fibration.laws.equivalent import decide as comparing
from fibration.laws.facts import certified, coupling
from fibration.laws.facts.certified import NAMES
from fibration.laws.law import FILE_AN_ISSUE, proved
from fibration.laws.subject import Subject
from fibration.printing.law_table import marks

token, text, image, trajectory, prompt_group = strata("token text image trajectory prompt_group")
weight = Attribute("weight", on=trajectory)
words = Attribute("words", on=text)
current, old = policies("current old")
SOURCES = kept.sources()
LATER = tuple(LAWS)[list(LAWS).index("identity") + 1 :]


@pytest.fixture
def cached(monkeypatch, tmp_path):
    """Nothing is in memory, and verdicts may be kept on disk in a folder of this test's own."""
    for name in ("VERDICTS", "FACTS", "SUBJECTS"):
        monkeypatch.setattr(getattr(module, name), "_recent", Recent(256))
    monkeypatch.setenv("FIBRATION_CACHE", str(tmp_path))
    monkeypatch.setattr(kept, "SOURCES", SOURCES)
    comparing._broken_foundation.cache_clear()
    return tmp_path


def one(name="one", **more):
    return Hierarchy(
        name=name, gates={token: clip_gate(Parameter("C"))}, decomposition=log_ratio(), objective=token_mean(), **more
    )


def raising(error):
    """One decision, and then an exception."""

    def decisions(subject):
        yield proved("gate on token", "is decided before the exception")
        raise error

    return decisions


def set_decisions(monkeypatch, law, decisions):
    monkeypatch.setitem(LAWS, law, replace(LAWS[law], decisions=decisions))
    monkeypatch.setattr(catalogue, "OURS", tuple(LAWS.items()))  # as a law of ours, it may be kept


@pytest.mark.parametrize("timeout", [60, None])
@pytest.mark.parametrize("error", [IndexError("out of range"), RecursionError(), StopIteration(), KeyError("a\nb")])
def test_a_law_that_raises_is_undecided_and_asks_for_an_issue(cached, monkeypatch, error, timeout):
    set_decisions(monkeypatch, "identity", raising(error))
    found = one().verify(timeout=timeout)
    assert not found.ok
    broken = [v for v in found.verdicts if v.internal_error]
    assert [(v.law, v.subject, v.status) for v in broken] == [("identity", "hierarchy", "undecided")]
    assert broken[0].found.startswith("internal error: ") and "\n" not in broken[0].found
    assert broken[0].remedy == FILE_AN_ISSUE
    before = {v.status for v in found.verdicts if v.law == "identity" and v.subject == "gate on token"}
    assert before == {"proved"}  # what was decided is not lost
    assert broken[0] in found.causes
    assert {v.law for v in found.verdicts} >= {"first_order", "gradient", "positivity", "inward"}  # asked all the same
    with pytest.raises(LawError, match=r"the law 'identity'(.|\n)*internal error(.|\n)*issue tracker"):
        found.raise_for_status()


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_interrupts_and_memory_errors_are_raised(cached, monkeypatch, error):
    set_decisions(monkeypatch, "identity", raising(error()))
    with pytest.raises(error):
        one().verify(timeout=None)


def test_a_timeout_is_not_an_internal_error(cached, monkeypatch):
    set_decisions(monkeypatch, "identity", raising(Stopped()))
    found = one().verify()
    assert not any(v.internal_error for v in found.verdicts)
    assert [v.law for v in found.verdicts if v.out_of_time] == ["identity", *LATER]


def test_laws_after_a_foundation_that_raises_are_not_decided(cached, monkeypatch):
    set_decisions(monkeypatch, "structure", raising(ValueError("no")))
    found = one().verify()
    assert [(v.law, v.internal_error) for v in found.verdicts] == [("structure", False), ("structure", True)]
    assert found.facts == ()
    assert [m.word for m in marks(found)][:2] == ["undecided", "not asked, since it rests on a law that fails"]


def test_no_reason_covers_an_internal_error(cached, monkeypatch):
    set_decisions(monkeypatch, "positivity", raising(ValueError("no")))
    found = one(gives_up={"positivity": "whatever"}).verify()
    assert [v.given_up for v in found.verdicts if v.law == "positivity"] == ["", ""]
    assert not found.ok
    assert "given_up" not in {v.law for v in found.verdicts}


def test_internal_errors_are_not_cached(cached, monkeypatch):
    h, decisions = one(), LAWS["positivity"].decisions
    set_decisions(monkeypatch, "positivity", raising(ValueError("no")))
    assert not h.verify().ok
    assert not list(cached.glob(f"{NOTES}/verdicts*"))
    set_decisions(monkeypatch, "positivity", decisions)
    assert h.verify().ok


@pytest.mark.sampled
@pytest.mark.parametrize("fact", NAMES)
def test_a_fact_that_raises_is_not_certified(cached, monkeypatch, fact):
    facts, h = certified.facts, one()

    def fail():
        raise ValueError("no")
        yield

    monkeypatch.setattr(certified, "facts", lambda s: ((n, fail() if n == fact else some) for n, some in facts(s)))
    found = {f.name: f for f in h.verify().facts if f.subject == "hierarchy" or f.name != fact}
    assert found[fact].value == "not certified: internal error"
    assert found[fact].argument == f"internal error: ValueError: no; {FILE_AN_ISSUE}"
    assert [f.name for f in h.verify().facts if "internal error" in f.value] == [fact]
    assert not list(cached.glob(f"{NOTES}/facts*"))
    monkeypatch.setattr(certified, "facts", facts)
    assert "internal error" not in str(h.verify())


def test_an_exception_in_code_that_all_facts_share_leaves_all_facts_not_certified(cached, monkeypatch):
    def fail(subject):
        raise ValueError("no")
        yield

    monkeypatch.setattr(certified, "facts", fail)
    found = [(f.name, f.value) for f in one().verify().facts]
    assert found == [*((n, "not certified: internal error") for n in NAMES), ("coupling", "row-local")]


def test_the_compiler_may_raise(cached, monkeypatch):
    def fail(hierarchy):
        raise ValueError("no")

    monkeypatch.setattr(coupling, "coupling_of", fail)
    *others, last = one().verify().facts
    assert last.name == "coupling" and last.argument == f"internal error: ValueError: no; {FILE_AN_ISSUE}"
    assert others and "internal error" not in str(others)


def test_a_loss_too_large_to_be_compiled_has_no_coupling_and_no_internal_error(cached, monkeypatch):
    def fail(hierarchy):
        raise ExpressionTooLarge("an expression of depth 101 is too large")

    monkeypatch.setattr(coupling, "coupling_of", fail)
    last = one().verify().facts[-1]
    assert (last.value, last.argument) == ("not certified", "an expression of depth 101 is too large to be compiled")


def test_a_comparison_that_raises_is_undecided(cached, monkeypatch):
    def fail(*_):
        raise StopIteration

    monkeypatch.setattr(comparing, "same_loss", fail)
    for timeout in (60, None):
        (verdict,) = equivalent(one("a"), one("b"), timeout=timeout).verdicts
        assert (verdict.status, verdict.internal_error) == ("undecided", True)
        assert verdict.found == "internal error: StopIteration" and verdict.remedy == FILE_AN_ISSUE
        assert verdict.to_dict()["internal_error"] is True


def test_a_foundation_that_raises_leaves_a_comparison_undecided(cached, monkeypatch):
    decisions = LAWS["structure"].decisions
    set_decisions(monkeypatch, "structure", raising(ValueError("no")))
    (verdict,) = equivalent(one("a"), one("b")).verdicts
    assert (verdict.status, verdict.found) == ("undecided", "internal error: ValueError: no")
    set_decisions(monkeypatch, "structure", decisions)
    assert equivalent(one("a"), one("b")).ok


def test_the_traceback_is_logged(cached, monkeypatch, caplog):
    set_decisions(monkeypatch, "identity", raising(IndexError("out of range")))
    with caplog.at_level(logging.DEBUG, logger="fibration"):
        one().verify()
    (record,) = [r for r in caplog.records if r.exc_info]
    assert "the law 'identity'" in record.getMessage() and record.exc_info[0] is IndexError


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_a_report_says_what_the_internal_error_is(cached, monkeypatch, form):
    set_decisions(monkeypatch, "identity", raising(ValueError("no")))
    code, output = invoke("verify", "ppo", "--format", form)
    assert code == 1 and "internal error: ValueError: no" in " ".join(output.split()) and "Traceback" not in output


# ---------------------------------------------------------------- hierarchies on which a law raised an exception


R = residual
b = Parameter("b", default=0.2)
GROUP = count(trajectory, over=prompt_group)


def chain(**gates):
    return Hierarchy(
        name="chain", fibrations=[Fibration(token, trajectory, kernel=uniform())],
        gates={s: gates.get(s.name, identity_gate()) for s in (token, trajectory)},
        decomposition=log_ratio(scale=mass), objective=token_mean(), groups=[prompt_group],
    )  # fmt: skip


def tree(**gates):
    both = MarkovKernel(1 / (count(text, over=trajectory) + count(image, over=trajectory)))
    return Hierarchy(
        name="tree", fibrations=[Fibration(s, trajectory, kernel=both) for s in (text, image)],
        gates={s: gates.get(s.name, identity_gate()) for s in (text, image, trajectory)},
        decomposition=log_ratio(scale=mass), objective=token_mean(), groups=[prompt_group],
    )  # fmt: skip


# An attribute of one leaf, while a later token of the other leaf changes.
OF_TEXTS = total(words, over=trajectory, of=text)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("hierarchy", "law", "status"),
    [
        (chain(trajectory=Gate(where(GROUP > 3, R, 2 * R))), "identity", "refuted"),
        (chain(trajectory=Gate(where(GROUP > 0, R, 2 * R))), "identity", "proved"),
        (tree(image=Gate(where(absolute(R) < b * GROUP, R, R / 2))), "identity", "proved"),
        (tree(image=Gate(where(total(weight, over=prompt_group) < 1, R, R / 2))), "identity", "refuted"),
        (chain(token=Gate(R + R * R * sigmoid(2))), "inward", "refuted"),
        (chain(token=Gate(R / (1 + R * R * sqrt(2)))), "inward", "refuted"),
        (chain(token=Gate(R + R * R * R * exp(-1))), "inward", "proved"),
        (tree().replace(objective=token_mean().weigh(exp(-OF_TEXTS))), "causal", "refuted"),
        (
            chain(trajectory=Gate(1 / R)).replace(decomposition=signed_log_ratio(scale=mass), groups=[]),
            "inward",
            "refuted",
        ),
    ],
    ids=lambda value: str(dict(value.gates)) if isinstance(value, Hierarchy) else value,
)
def test_hierarchies_that_once_raised_in_a_law_are_decided(hierarchy, law, status):
    subject = Subject(hierarchy, [])
    for name in ("structure", "locality", "markov", "reflecting", "recovery", law):
        subject.verdicts += LAWS[name].decide(subject)
    assert not [v.found for v in subject.verdicts if v.internal_error]
    assert {v.status for v in subject.verdicts if v.law == law} - {"proved"} == {status} - {"proved"}


@pytest.mark.sampled
@pytest.mark.parametrize(
    "of_nothing", [sqrt(as_expression(-1)), log(as_expression(0)), 1 / (as_expression(2) - 2)], ids=str
)
@pytest.mark.parametrize("read", [lambda e: where(e >= 0, 1, 2), lambda e: minimum(e, 1), lambda e: clip(e, -1, 1)])
def test_gates_with_constants_without_a_value_are_compared(of_nothing, read):
    """Sympy evaluates such constants to numbers that are not real, and refuses to compare them."""
    h = chain().replace(advantages=read(of_nothing) * reward, objective=token_mean().weigh(read(of_nothing)))
    verdicts = {law: list(LAWS[law].decide(Subject(h, []))) for law in ("objective", "agreement", "causal", "baseline")}
    assert not [v.found for found in verdicts.values() for v in found if v.internal_error]
    assert "refuted" in {v.status for v in verdicts["objective"]}


OF_TEXT = total(where(total(words, over=text) > 2, 1, 0), over=trajectory, of=text)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (tree(), tree(image=Gate(where(count(image, over=image) * log_prob(old) > -2, R, 2 * R)))),
        (tree(), tree().replace(objective=token_mean().weigh(absolute(token_log_ratio * OF_TEXT)))),
    ],
)
def test_losses_that_once_raised_in_a_comparison_are_compared(first, second):
    (verdict,) = equivalent(first, second, timeout=None).verdicts
    assert verdict.status in ("refuted", "undecided") and not verdict.internal_error


def test_a_formula_of_one_leaf_is_not_evaluated_on_the_other_leaf():
    """Image tokens have no value of a formula of texts."""
    h = tree().replace(objective=token_mean().weigh(1 / (OF_TEXT - exp(log_prob(old)))))
    assert [v.status for v in LAWS["objective"].decide(Subject(h, []))] == ["proved", "refuted"]
    assert {v.internal_error for law in ("objective", "causal") for v in LAWS[law].decide(Subject(h, []))} == {False}


def test_a_batch_without_others_is_no_counterexample_to_a_mean_of_others():
    ratio = exp(mean(log_prob(old), over=trajectory))
    others = mean(ratio, over=prompt_group, of=trajectory, others=True)
    h = chain(trajectory=Gate(R / (1 + R * R))).replace(objective=token_mean().weigh(others))
    verdicts = list(LAWS["inward"].decide(Subject(h, [])))
    assert [v.status for v in verdicts if v.status != "proved"] == ["refuted"]


def test_a_kernel_may_read_a_group():
    domain, batch = strata("domain batch")
    groups = count(prompt_group, over=batch)
    crossed = Hierarchy(
        name="crossed",
        fibrations=[
            Fibration(token, trajectory, MarkovKernel(1 / groups)),
            Fibration(token, domain, uniform()),
            Fibration(trajectory, batch, proportional(count(token))),
            Fibration(domain, batch, proportional(count(token))),
        ],
        gates={s: identity_gate() for s in (token, trajectory, domain, batch)},
        decomposition=log_ratio(scale=mass), objective=token_mean(), groups=[prompt_group],
    )  # fmt: skip
    (verdict,) = LAWS["coherent"].decide(Subject(crossed, []))
    assert (verdict.status, verdict.internal_error) == ("refuted", False)


def of_experts(weight=1, image_gate=None):
    """Only images lie over experts."""
    expert, batch = strata("expert batch")
    tokens = {s: count(text, over=s) + count(image, over=s) for s in (trajectory, batch)}
    fibrations = [Fibration(s, trajectory, MarkovKernel(1 / tokens[trajectory])) for s in (text, image)]
    fibrations += [
        Fibration(trajectory, batch, proportional(count(text) + count(image))),
        Fibration(image, expert, uniform()),
        Fibration(expert, batch, MarkovKernel(count(image) / tokens[batch])),
    ]
    levels = (text, image, trajectory, expert, batch)
    return Hierarchy(
        name="experts", fibrations=fibrations, gates={s: identity_gate() for s in levels} | ({image: image_gate} if image_gate else {}),
        decomposition=log_ratio(scale=mass), objective=token_mean().weigh(weight), rows=trajectory,
    )  # fmt: skip


EXPERTS = count(Stratum("expert"), over=Stratum("batch"))
WEIGHED = of_experts(1 + count(image, over=Stratum("batch"))), of_experts(1 + EXPERTS)
GATED = of_experts(image_gate=Gate(where(Attribute("k", on=Stratum("expert")) > 1, R, clip(R, -1, 1)))), of_experts()


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("both", "when", "status"),
    [
        (WEIGHED, "equal(count(image, over=expert))", "refuted"),
        (WEIGHED, "count(image, over=expert) <= 1", "undecided"),
        (WEIGHED, "equal(count(image, over=trajectory), on=expert)", "refuted"),
        (GATED, "k > 1", "proved"),
        (GATED, "equal(advantage, on=expert)", "refuted"),
    ],
)
def test_a_condition_may_name_a_stratum_of_one_leaf(both, when, status):
    """Text lies over no expert, so a condition on experts says nothing about text."""
    (verdict,) = equivalent(*both, when=when).verdicts
    assert not verdict.internal_error, verdict.found
    assert verdict.status == status


@pytest.mark.thorough
def test_the_condition_one_means_exactly_one_element():
    """With one expert both weights are 2. A batch without images is not compared."""
    (verdict,) = equivalent(of_experts(1 + EXPERTS), of_experts(2), when="one(expert)").verdicts
    assert verdict.status != "refuted"
