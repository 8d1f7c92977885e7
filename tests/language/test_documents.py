"""Hierarchies as JSON: they are complete and read back equal, and an invalid document is refused with a message."""

import json
import random

import jsonschema
import pytest
from fuzz.random_hierarchies import whole
from pydantic import ValidationError
from support import POOL, SPECS, random_hierarchy, refuses, spec, token, trajectory, two_levels
from thorough import ALL

from fibration import (
    Attribute,
    Decomposition,
    Fibration,
    FibrationError,
    Gate,
    Hierarchy,
    MarkovKernel,
    Parameter,
    SpecError,
    clip_gate,
    constant_normaliser,
    count,
    density,
    exp,
    gated,
    identity_gate,
    load,
    log_ratio,
    residual,
    token_log_ratio,
    total,
    uniform,
    where,
)
from fibration.language.atoms import BATCH, Stratum
from fibration.language.hierarchy import fingerprint
from fibration.printing.text import text as shown

C = Parameter("C", default={"+": 0.2, "-": 0.1}, per_channel=True)
epsilon = Parameter("epsilon", default=0.05, upper=1)
weight = Attribute("weight", on=token)
BOTH = Parameter("both", default={"+": 0.25, "-": 0.125}, lower=0.0625, upper=0.5, per_channel=True, on=trajectory)


HAND_MADE = {
    "bare kernel": two_levels(
        fibrations=[Fibration(token, trajectory, MarkovKernel(weight / total(weight, over=trajectory)))]
    ),
    "bare gate": two_levels(gates={trajectory: Gate(residual * (1 + density(trajectory) * 0)), token: Gate(residual)}),
    "bare decomposition": two_levels(
        decomposition=Decomposition({"": token_log_ratio * 2}, exp(gated("") / 2), scale=2),
        gates={trajectory: identity_gate(), token: clip_gate(epsilon)},
    ),
    "bare signed decomposition": two_levels(
        decomposition=Decomposition(
            {
                "+": where(token_log_ratio >= 0, token_log_ratio, 0),
                "-": where(token_log_ratio >= 0, 0, -token_log_ratio),
            },
            exp(gated("+") - gated("-")),
        )
    ),
    "constant normaliser": two_levels(objective=constant_normaliser(Parameter("length", default=8))),
    "normaliser in counts": two_levels(objective=constant_normaliser(count(token))),
    "given up": two_levels(gives_up={"first_order": 'because "quotes", {braces}, \\ and\nnew lines'}),
    "other rows": two_levels(
        fibrations=[Fibration(token, Stratum("sample"), kernel=uniform())],
        gates={Stratum("sample"): identity_gate(), token: identity_gate()},
        decomposition=log_ratio(),
        rows=Stratum("sample"),
    ),
    "batch": two_levels(
        fibrations=[Fibration(token, Stratum(BATCH), kernel=uniform())],
        gates={Stratum(BATCH): identity_gate(), token: identity_gate()},
        decomposition=log_ratio(),
    ),
    "parameters": two_levels(
        gates={
            trajectory: clip_gate(Parameter("free", lower=None)),
            token: clip_gate(Parameter("bound", default=0.25, lower=0.125, upper=0.5, on=trajectory)),
        }
    ),
    "parameters per channel": two_levels(gates={trajectory: identity_gate(), token: clip_gate(BOTH)}),
    "attributes": two_levels(
        gates={
            trajectory: Gate(residual * Attribute("level", on=trajectory, positive=False, lower=-0.5, upper=0.25)),
            token: Gate(residual * Attribute("share", on=token, upper=1)),
        }
    ),
}
EVERY = {**{n: n for n in SPECS}, **{f"random {s}": s for s in range(POOL)}, **{n: n for n in HAND_MADE}}
SEEDS = range(800 if ALL else 120)


def every(name):
    key = EVERY[name]
    return HAND_MADE[key] if key in HAND_MADE else spec(key) if isinstance(key, str) else random_hierarchy(key)


@pytest.mark.sampled
@pytest.mark.parametrize("name", EVERY)
def test_json_round_trip(name):
    h = every(name)
    text = h.model_dump_json()
    again = Hierarchy.model_validate_json(text)
    assert again == h
    assert hash(again) == hash(h)
    assert repr(again) == repr(h)
    assert again.model_dump_json() == text
    assert Hierarchy.model_validate(json.loads(text)) == h
    assert again.parameters == h.parameters
    assert again.attributes == h.attributes
    assert [again.gate(s) for s in again.order] == [h.gate(s) for s in h.order]


def test_a_changed_document_is_another_hierarchy():
    document = json.loads(two_levels().model_dump_json())
    changes = [
        ("name", "other"), ("objective", "token_mean()"), ("rows", "sample"), ("gives_up", {"first_order": "why"}),
        ("decomposition", "signed_log_ratio()"), ("gates", {**document["gates"], "token": "zero_gate()"}),
        ("parameters", [{**document["parameters"][0], "default": 0.3}]),
        ("fibrations", [{**document["fibrations"][0], "kernel": "proportional(count(token))"}]),
    ]  # fmt: skip
    for key, value in changes:
        assert Hierarchy.model_validate({**document, key: value}) != two_levels(), key


def test_drawn_declarations_are_read_back():
    """Weights, conditions, statistics, penalties and advantages, as the fuzz draws them."""
    read = 0
    for seed in SEEDS:
        try:
            h = whole(random.Random(seed))
        except FibrationError:
            continue
        again = Hierarchy.model_validate_json(h.model_dump_json())
        assert (again, hash(again), repr(again)) == (h, hash(h), repr(h))
        assert (again.objective, again.penalties, again.advantages) == (h.objective, h.penalties, h.advantages)
        read += 1
    assert read > len(SEEDS) / 2


@pytest.mark.sampled
@pytest.mark.parametrize("name", EVERY)
def test_the_schema_accepts_every_dump(name):
    schema = Hierarchy.model_json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(every(name).model_dump(mode="json"), schema)


@pytest.mark.sampled
@pytest.mark.parametrize("name", SPECS)
def test_the_schema_refuses_what_loading_refuses(name):
    validator = jsonschema.Draft202012Validator(Hierarchy.model_json_schema())
    document = spec(name).model_dump(mode="json")
    for broken in (
        {k: v for k, v in document.items() if k != "gates"},
        {**document, "extra": 1},
        {**document, "gates": {"token": 3}},
        {**document, "name": "my name"},
        {**document, "strata": []},
        {**document, "parameters": [{"name": "x", "defualt": 1}]},
        {**document, "objective": None},
    ):
        assert list(validator.iter_errors(broken)), broken
        with pytest.raises((ValidationError, SpecError)):
            Hierarchy.model_validate(broken)


def test_the_bounds_of_an_attribute_are_of_its_declaration():
    h = HAND_MADE["attributes"]
    assert "  Attribute('level', on=trajectory, positive=False, lower=-0.5, upper=0.25)" in shown(h)
    wider = h.replace(gates={**h.gates, token: Gate(residual * Attribute("share", on=token))})
    assert wider != h
    assert fingerprint(wider) != fingerprint(h)


def document(**changes):
    return {**json.loads(two_levels().model_dump_json()), **changes}


def test_a_document_loads():
    assert Hierarchy.model_validate(document()) == two_levels()


BROKEN = {
    "extra key": ({"extra": 1}, "extra"),
    "strata are a text": ({"strata": "token"}, "strata"),
    "gates are a list": ({"gates": ["identity_gate()"]}, "gates"),
    "name is a number": ({"name": 1}, "name"),
    "name is a keyword": ({"name": "class"}, "class"),
    "a stratum is called residual": ({"strata": ["token", "trajectory", "residual"]}, "residual"),
    "rows are no name": ({"rows": "my rows"}, "rows"),
    "unknown gate": ({"gates": {"token": "no_such_gate(1)", "trajectory": "identity_gate()"}}, "no_such_gate"),
    "unknown operator": ({"gates": {"token": "sin(residual)", "trajectory": "identity_gate()"}}, "sin"),
    "a kernel as a gate": ({"gates": {"token": "uniform()", "trajectory": "identity_gate()"}}, "gate on token"),
    "a gate as an objective": ({"objective": "identity_gate()"}, "objective"),
    "an expression as an objective": ({"objective": "residual"}, "objective"),
    "wrong arguments": ({"gates": {"token": "clip_gate()", "trajectory": "identity_gate()"}}, "clip_gate"),
    "unknown argument": ({"gates": {"token": "clip_gate(limit=C)", "trajectory": "identity_gate()"}}, "clip_gate"),
    "unknown name": ({"gates": {"token": "clip_gate(D)", "trajectory": "identity_gate()"}}, "'D'"),
    "code": ({"gates": {"token": "__import__('os').system('x')", "trajectory": "identity_gate()"}}, "gate on token"),
    "gate on an unknown stratum": ({"gates": {**document()["gates"], "domain": "identity_gate()"}}, "domain"),
    "unknown fibration end": ({"fibrations": [{"source": "token", "target": "x", "kernel": "uniform()"}]}, "'x'"),
    "default per unknown channel": ({"parameters": [{"name": "C", "default": {"up": 1}, "per_channel": True}]}, "up"),
    "a parameter twice": ({"parameters": [{"name": "C", "default": 0.1}, {"name": "C", "default": 0.2}]}, "'C'"),
    "a parameter called like a stratum": ({"parameters": [{"name": "C"}, {"name": "token"}]}, "'token'"),
    "a stratum twice": ({"strata": ["token", "token", "trajectory"]}, "'token'"),
    "attribute on an unknown stratum": ({"attributes": [{"name": "w", "on": "x"}]}, "'x'"),
    "null": ({"decomposition": None}, "decomposition"),
    "too many strata": ({"strata": [f"s{i}" for i in range(65)]}, "'strata'\n  required: List should have at most 64 items"),
    "no strata": ({"strata": []}, "'strata'\n  required: List should have at least 1 item"),
    "a long text": ({"objective": "trajectory_mean()" + " " * 20_000}, "objective"),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("name", BROKEN)
def test_broken_documents_are_refused(name):
    changes, word = BROKEN[name]
    with pytest.raises((FibrationError, ValidationError)) as caught:
        Hierarchy.model_validate_json(json.dumps(document(**changes)))
    assert word in str(caught.value)


@pytest.mark.parametrize("key", ["name", "strata", "gates", "decomposition", "objective"])
def test_missing_keys_are_named(key):
    with pytest.raises(SpecError, match=f"^the document is no hierarchy: no '{key}'\n  required: all of name, strata"):
        Hierarchy.model_validate({k: v for k, v in document().items() if k != key})


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "3", '"fiberpo"', "{", "{}", "[" * 100_000, '{"strata":' * 5000, "\x00", "NaN"],
    ids=lambda t: t[:12],
)
def test_other_json_is_refused(text):
    with pytest.raises(SpecError, match=r"^the document is no hierarchy: (it is|no 'name')"):
        Hierarchy.model_validate_json(text)


# What is written over the document, and what the error says: its place, its rule, and the next step.
NAMED = {
    "unknown field": ({"orthogonalize": 1}, "unknown field 'orthogonalize'", "one of name, strata,", "did you mean 'orthogonalise'?"),
    "misspelt kernel": (
        {"fibrations": [{"source": "token", "target": "trajectory", "kernal": "uniform()"}]},
        "unknown field 'fibrations.0.kernal'", "one of source, target, kernel", "did you mean 'kernel'?",
    ),
    "no kernel": ({"fibrations": [{"source": "token", "target": "trajectory"}]}, "no 'fibrations.0.kernel'", "all of source, target, kernel", ""),
    "default": ({"parameters": [{"name": "C", "default": "0.1"}]}, "'parameters.C.default'", "a number, one each for '+' and '-', or null", ""),
    "assumption": ({"assume": [{"balance": ["token", "trajectory"]}]}, "'assume.0'", '{"balanced": [A, B]}, or {"populated": A, "over": B}', "did you mean 'balanced'?"),
    "stratum": ({"strata": ["token", "my stratum"]}, "'strata.1'", "a letter, then letters", ""),
    "gate": ({"gates": {"token": 1}}, "'gates.token'", "a text", ""),
    "orthogonalise": ({"orthogonalise": "proj"}, "'orthogonalise'", "'projection', or null", ""),
    "several": ({"rows": 3, "colour": 1}, "unknown field 'colour'", "one of name", "and then: 'rows'"),
}  # fmt: skip


@pytest.mark.parametrize("which", NAMED)
def test_wrong_documents_are_described_in_the_language(which):
    changes, what, required, remedy = NAMED[which]
    with pytest.raises(SpecError) as caught:
        Hierarchy.model_validate(document(**changes))
    error = caught.value
    assert error.what == f"the document is no hierarchy: {what}"
    assert error.required.startswith(required)
    assert remedy in error.remedy
    assert "and then" not in error.remedy or which == "several"  # one mistake is one problem
    assert "pydantic" not in str(error)
    assert "Document" not in str(error)


@pytest.mark.parametrize(
    ("old", "new", "what", "found"),
    [
        ('"gates":{', '"gates":{"token":"zero_gate()",', "'token' is given twice in 'gates'", "'zero_gate()' and 'identity_gate()'"),
        ('{"name":', '{"name":"other","name":', "'name' is given twice", "'other' and "),
        ('{"source":', '{"kernel":"x","source":', "'kernel' is given twice in 'fibrations.0'", "'x' and 'uniform()'"),
    ],
)  # fmt: skip
def test_a_key_given_twice_is_refused(old, new, what, found, tmp_path):
    """Other JSON readers silently keep the last value."""
    text = two_levels(gates={trajectory: identity_gate(), token: identity_gate()}).model_dump_json()
    twice = text.replace(old, new, 1)
    assert twice != text
    file = tmp_path / "twice.json"
    file.write_text(twice)
    for call, source in (
        (lambda: Hierarchy.model_validate_json(twice), "the document"),
        (lambda: load(file), f"'{file}': the document"),
    ):
        with pytest.raises(SpecError) as caught:
            call()
        assert type(caught.value) is SpecError
        assert caught.value.what == f"{source} is no hierarchy: {what}"
        assert caught.value.found.startswith(found)


def test_declarations_that_nothing_uses_are_refused():
    given = document()
    for kind, field, entry in (
        ("stratum", "strata", "domain"),
        ("parameter", "parameters", {"name": "domain"}),
        ("attribute", "attributes", {"name": "domain", "on": "token"}),
    ):
        with pytest.raises(SpecError, match=f"declares the {kind} 'domain', which nothing uses"):
            Hierarchy.model_validate({**given, field: [*given[field], entry]})
    rows = {**given, "strata": [*given["strata"], "sample"], "rows": "sample"}
    assert Hierarchy.model_validate(rows).rows.name == "sample"
    # a stratum that a formula counts is used, whether or not that is right
    counting = "Objective(1/count(token, over=sample))"
    assert Hierarchy.model_validate({**rows, "objective": counting}).objective.written == counting


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("clip_gate(C, 1)", "clip_gate: too many positional arguments"),
        ("residual < 1", "a gate cannot be the condition residual < 1"),
        ('density(trajectory, "q")', "density cannot read the channel 'q'"),
        ("residual ** 99", "cannot raise residual to the power 99"),
    ],
)
def test_errors_in_a_document_name_their_formula(text, what):
    given = document()
    with pytest.raises(SpecError) as caught:
        Hierarchy.model_validate({**given, "gates": {**given["gates"], "token": text}})
    assert caught.value.what == f"hierarchy '{given['name']}': gate on token: {what}"
    kernel = [{"source": "token", "target": "trajectory", "kernel": "1 < 2"}]
    with pytest.raises(SpecError, match="kernel token → trajectory: a kernel weight cannot be the condition"):
        Hierarchy.model_validate({**given, "fibrations": kernel})


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[" * 10_000, dict(what="no JSON", found="nested too deep", remedy="--format schema")),
        ('{"gates": ' + '{"a":' * 30 + "1" + "}" * 31, dict(what="'gates.a'", required="a text", found="{...}}}}}")),
        ('{"name": NaN}', dict(what="no JSON", found="'NaN'")),
        ('{"objective": "\\ud800"}', dict(what="'objective'", required="unable to parse", found="ud800")),
        (f'{{"name": {"9" * 5000}}}', dict(what="no JSON", found="5000 digits")),
    ],
    ids=["cut off", "deep", "NaN", "half a character", "a long number"],
)
def test_json_that_cannot_be_read_is_refused(text, parts):
    refuses(SpecError, lambda: Hierarchy.model_validate_json(text), **parts)


def test_a_document_with_many_unknown_fields_is_refused_with_little_work(monkeypatch):
    calls = []
    monkeypatch.setattr("fibration.language.document.suggest", lambda word, known: calls.append(word) or "")
    unknown = {f"key{'x' * 500}{i}": i for i in range(3_000)}
    for fields in ({**document(), **unknown}, unknown, document(assume=[unknown])):
        with pytest.raises(SpecError, match=r"unknown field|'assume.0'") as error:
            Hierarchy.model_validate(fields)
        assert len(str(error.value)) < 4_000
    assert len(calls) < 1_000
