"""Written forms: text and JSON say everything, read back equal, and never run anything."""

import copy
import json
import pickle
from decimal import Decimal
from fractions import Fraction

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from support import POOL, SPECS, domain, prompt_group, random_hierarchy, spec, token, trajectory
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
    advantage,
    aggregate_gate,
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
    signed_log_ratio,
    strata,
    token_log_ratio,
    total,
    trajectory_mean,
    uniform,
    where,
)
from fibration.language.atoms import BATCH, SOURCE, TARGET, FrozenMap, Stratum
from fibration.language.expressions import apply, as_expression
from fibration.language.grammar import parse
from fibration.language.operators import OPERATORS
from fibration.language.registry import CONSTRUCTORS, construct

C = Parameter("C", default={"+": 0.2, "-": 0.1}, per_channel=True)
epsilon = Parameter("epsilon", default=0.05, upper=1)
weight = Attribute("weight", on=token)
NAMES = {
    "source": SOURCE, "target": TARGET, "token": token, "trajectory": trajectory,
    "C": C, "epsilon": epsilon, "weight": weight,
}  # fmt: skip

# ---------------------------------------------------------------- text of expressions

numbers = st.one_of(
    st.integers(-20, 20),
    st.decimals(min_value=-100, max_value=100, places=3, allow_nan=False).map(lambda d: Fraction(Decimal(d))),
    st.floats(allow_nan=False, allow_infinity=False, min_value=1e-200, max_value=1e200),
    st.sampled_from([Fraction(1, 3), Fraction(-22, 7), Fraction(1, 2**70), 10**40, Fraction(1, 10**250)]),
).map(as_expression)
ATOMS = [
    residual, advantage, token_log_ratio, C, epsilon, weight, count(token), count(token, over=trajectory),
    count(SOURCE, over=TARGET), total(weight), total(weight, over=trajectory), density(trajectory),
    density(trajectory, "+"), gated("-"), gated(""),
]  # fmt: skip
values = st.deferred(lambda: st.one_of(numbers, st.sampled_from(ATOMS), applications))
conditions = st.deferred(
    lambda: st.one_of(
        st.builds(apply, st.sampled_from(["<", "<=", ">", ">="]), values, values),
        st.builds(apply, st.sampled_from(["and", "or"]), conditions, conditions),
        st.builds(apply, st.just("not"), conditions),
    )
)
ONE_ARGUMENT, TWO_ARGUMENTS, THREE_ARGUMENTS = (
    [name for name, row in OPERATORS.items() if row.arity == n and not row.is_condition and name not in ("**", "where")]
    for n in (1, 2, 3)
)
applications = st.one_of(
    st.builds(apply, st.sampled_from(TWO_ARGUMENTS), values, values),
    st.builds(apply, st.sampled_from(ONE_ARGUMENT), values),
    st.builds(lambda e, n: e**n, values, st.integers(1, 2)),
    st.builds(where, conditions, values, values),
    st.builds(apply, st.sampled_from(THREE_ARGUMENTS), values, values, values),
)


@settings(max_examples=400 if ALL else 150)
@given(values)
def test_reading_what_was_written_gives_the_same_expression(e):
    text = str(e)
    assert parse(text, NAMES) == e
    assert str(parse(text, NAMES)) == text


@settings(max_examples=100 if ALL else 40)
@given(conditions)
def test_conditions_read_back_too(c):
    assert parse(f"where({c}, 1, 0)", NAMES) == where(c, 1, 0)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("1 - 2 - 3", as_expression(1) - 2 - 3),
        ("C/epsilon/2", C / epsilon / 2),
        ("C*(epsilon + 2)", C * (epsilon + 2)),
        ("-C**2", -(C**2)),
        ("(-C)**2", (-C) ** 2),
        ("-2**2", -(as_expression(2) ** 2)),
        ("(-2)**2", as_expression(-2) ** 2),
        ("2*-C", 2 * -C),
        ("- - C", apply("neg", apply("neg", C))),
        ("C - -1", C - as_expression(-1)),
        (".5 + 1.e1 + 2E-1", as_expression(Fraction(1, 2)) + 10 + as_expression(Fraction(1, 5))),
        ("where(C < 1 & epsilon > 2 | ~(C >= 3), 1, 2)", where(((C < 1) & (epsilon > 2)) | ~(C >= 3), 1, 2)),
        ("\n C\t+ 1 ", C + 1),
        ("count(token,over=trajectory)", count(token, over=trajectory)),
        ('density(trajectory, "+")', density(trajectory, "+")),
    ],
)
def test_precedence(text, meaning):
    assert parse(text, NAMES) == meaning


def test_comparisons_do_not_chain():
    with pytest.raises(SpecError, match="cannot be read") as caught:
        parse("where(0 < C < 1, 1, 2)", NAMES)
    assert "'<'" in caught.value.found or "<" in caught.value.found


HOSTILE = [
    "__import__('os').system('x')",
    '__import__("os").system("x")',
    "lambda: 0",
    "lambda x: x",
    "(1).__class__",
    "residual.__class__",
    "().__class__.__bases__[0]",
    "f'{1}'",
    'f"{1}"',
    "[x for x in (1, 2)]",
    "{1: 2}",
    "residual if C else 1",
    "residual := 1",
    "residual; 1",
    "import os",
    "open('/etc/passwd')",
    'open("/etc/passwd")',
    "eval('1')",
    "exec",
    "print(1)",
    "abs.__call__(1)",
    "count.__globals__",
    "C.default",
    "token.name",
    "uniform().__class__",
    "where",
    "@C",
    "C!",
    "C $ 1",
    "1_000",
    "0x10",
    "1e",
    "1.2.3",
    "\x00",
    "C\\n",
    "\ud800",
    "Ｃ",
    "１",
    "'C'",
    '"C"',
    "(",
    ")",
    "()",
    "C C",
    "C,",
    "abs()",
    "abs(C, C)",
    "abs(x=C)",
    "clip(C, 1)",
    "count()",
    "count(C)",
    "count(token, trajectory, token)",
    "count(token, over=C)",
    "count(token, over=trajectory, over=token)",
    "count(token, below=trajectory)",
    "count(over=trajectory, token)",
    "total(token)",
    "density(C)",
    "density(trajectory, 3)",
    'density(trajectory, "x")',
    "gated(3)",
    'gated("up")',
    "token",
    "source",
    "nothing",
    "C**-1",
    "C**(-1)",
    "C**0",
    "C**17",
    "C**0.5",
    "C**C",
    "C**1e3000",
    "1e301",
    "1e-301",
    "1e9999",
    "1e99999",
    "9" * 5000,
    "C < 1",
    "where(C, 1, 2)",
    "unknown(C)",
    "C(1)",
    "residual()",
    "",
    "   ",
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda t: repr(t[:40]))
def test_text_that_is_no_formula_is_refused(text, capsys):
    with pytest.raises(SpecError) as caught:
        Gate(parse(text, NAMES))  # a condition is an expression, but no gate
    assert len(str(caught.value)) < 2000
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("wrong", [None, 1, b"C", ["C"], {"C": 1}, residual, 1.5])
def test_only_text_is_read(wrong):
    with pytest.raises(SpecError, match="required: text in the expression grammar"):
        parse(wrong, NAMES)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5000 + "C" + ")" * 5000,
        "(" * 300 + "C" + ")" * 300,
        "-" * 5000 + "C",
        "~" * 3000 + "(C < 1)",
        "+".join(["C"] * 4000),
        "C**2" * 2000,
        "abs(" * 2400 + "C" + ")" * 2400,
        "where(C < 1, " * 700 + "C" + ", 1)" * 700,
        "abs(" * 60 + "C" + ("+1" * 60 + ")") * 60,
        "C*(" * 2500 + "C" + ")" * 2500,
        "uniform()" + ".per(C)" * 1300,
        "identity_gate()" + ".per(C)" * 1300,
        "x" * 1_000_000,
        "C+" * 500_000,
        " " * 1_000_000,
        "(" * 1_000_000,
    ],
    ids=lambda t: f"{t[:12]}...{len(t)}",
)
def test_huge_text_is_refused(text):
    with pytest.raises(SpecError) as caught:
        construct(Gate, text, NAMES, "a gate", Gate)
    assert len(str(caught.value)) < 2000


def test_text_at_the_limit_is_read():
    text = "(" * 90 + "C" + ")" * 90
    assert parse(text, NAMES) == C
    assert parse("+".join(["C"] * 100), NAMES).depth == 99


# ---------------------------------------------------------------- constructors

EXAMPLE_NAMES = {
    **NAMES,
    **{n: Parameter(n, default=2.0, lower=1) for n in "k bound low high ceiling".split()},
    "measure": count(token),
}


def examples():
    return [pytest.param(c, text, id=text) for c in CONSTRUCTORS.values() for text in c.examples]


def test_every_constructor_has_an_example():
    assert all(c.examples for c in CONSTRUCTORS.values())


@pytest.mark.parametrize(("entry", "text"), examples())
def test_constructor_examples_round_trip(entry, text):
    names = dict(EXAMPLE_NAMES)
    made = construct(entry.kind, text, names, "an example")
    again = construct(entry.kind, repr(made), names, "an example")
    assert type(made) is entry.kind
    assert again == made
    assert hash(again) == hash(made)
    assert repr(again) == repr(made)
    assert again.model_dump() == made.model_dump()


@pytest.mark.parametrize(
    "made",
    [
        Gate(where(abs(residual) <= C, residual, 0)),
        clip_gate(epsilon).per(1 / count(token)).per(3),
        Gate(residual * 2).per(C),
        aggregate_gate(budget=C, rollback=count(token)),
        aggregate_gate(C, rollback=2.5),
    ],
    ids=repr,
)
def test_gates_print_as_written_and_read_back(made):
    assert construct(Gate, repr(made), NAMES, "a gate", Gate) == made


def test_per_scales_argument_and_result():
    assert Gate(residual**2 + C).per(4).expression == 4 * ((residual / 4) ** 2 + C)
    assert repr(clip_gate(epsilon).per(4)) == "clip_gate(epsilon).per(4)"


@pytest.mark.parametrize(
    "text", ["clip_gate(epsilon)", "aggregate_gate(C, rollback=2)", "identity_gate()", "zero_gate()"]
)
def test_calls_print_as_they_were_written(text):
    assert repr(construct(Gate, text, NAMES, "a gate")) == text


def two_levels(**changes):
    arguments = dict(
        name="two_levels",
        fibrations=[Fibration(token, trajectory, kernel=uniform())],
        gates={trajectory: aggregate_gate(C, rollback=count(token)), token: identity_gate()},
        decomposition=signed_log_ratio(scale=1 / count(token, over=trajectory)),
        objective=trajectory_mean(),
    )
    return Hierarchy(**{**arguments, **changes})


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
}
EVERY = {**{n: n for n in SPECS}, **{f"random {s}": s for s in range(POOL)}, **{n: n for n in HAND_MADE}}


def every(name):
    key = EVERY[name]
    return HAND_MADE[key] if key in HAND_MADE else spec(key) if isinstance(key, str) else random_hierarchy(key)


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


@pytest.mark.parametrize("name", EVERY)
def test_the_schema_accepts_every_dump(name):
    schema = Hierarchy.model_json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(every(name).model_dump(mode="json"), schema)


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


def test_parameters_keep_everything():
    p = Parameter("p", default={"+": 0.25, "-": 0.125}, lower=0.0625, upper=0.5, per_channel=True, on=trajectory)
    h = two_levels(gates={trajectory: clip_gate(p), token: identity_gate()})
    kept = Hierarchy.model_validate_json(h.model_dump_json()).parameters["p"]
    assert (kept.default, kept.lower, kept.upper, kept.per_channel, kept.on) == (
        {"+": 0.25, "-": 0.125},
        0.0625,
        0.5,
        True,
        trajectory,
    )
    free = Parameter("q", lower=None)
    h = two_levels(gates={trajectory: clip_gate(free), token: identity_gate()})
    kept = Hierarchy.model_validate_json(h.model_dump_json()).parameters["q"]
    assert (kept.default, kept.lower, kept.upper, kept.per_channel, kept.on) == (None, None, None, False, None)


# ---------------------------------------------------------------- immutability


def test_declarations_cannot_be_changed():
    h = two_levels()
    fibration = h.fibrations[0]
    for thing, name in [
        (h, "name"), (h, "gates"), (h, "anything"), (fibration, "kernel"), (h.gates[token], "expression"), (C, "default"),
        (C, "lower"), (weight, "positive"), (token, "name"), (h.decomposition, "recovery"), (h.objective, "weight"),
    ]:  # fmt: skip
        with pytest.raises((ValidationError, AttributeError, TypeError, ValueError)):
            setattr(thing, name, "changed")


@pytest.mark.parametrize("which", ["gates", "gives_up", "parameters", "default"])
def test_mappings_cannot_be_changed(which):
    h = two_levels(gives_up={"first_order": "why"})
    mapping = h.parameters["C"].default if which == "default" else getattr(h, which)
    before = dict(mapping)
    key = next(iter(mapping))

    def update_in_place(m):
        m |= {key: 1}

    for change in (
        lambda m: m.__setitem__(key, 1), lambda m: m.__delitem__(key), lambda m: m.update({key: 1}), lambda m: m.pop(key),
        lambda m: m.popitem(), lambda m: m.clear(), lambda m: m.setdefault("new", 1), update_in_place,
    ):  # fmt: skip
        with pytest.raises(TypeError):
            change(mapping)
    assert dict(mapping) == before
    assert hash(h) == hash(two_levels())


def test_the_caller_s_own_mappings_stay_the_caller_s():
    gates = {trajectory: identity_gate(), token: identity_gate()}
    default = {"+": 0.5, "-": 0.25}
    h = two_levels(gates=gates)
    p = Parameter("p", default=default, per_channel=True)
    gates.clear()
    default["+"] = 9
    assert set(h.gates) == {token, trajectory}
    assert p.default == {"+": 0.5, "-": 0.25}


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize("name", ["fiberpo_domain", "gspo"])
def test_copies_are_equal(copier, name):
    again = copier(spec(name))
    assert again == spec(name)
    assert hash(again) == hash(spec(name))


def test_per_channel_values_hash_by_content():
    assert hash(FrozenMap({"+": 1.0, "-": 2.0})) == hash(FrozenMap({"-": 2.0, "+": 1.0}))


def test_hierarchies_are_keys():
    assert {spec(n): n for n in SPECS}[spec("ppo")] == "ppo"
    assert spec("ppo") != spec("ppo").replace(name="other")
    assert two_levels().replace(name="two_levels") == two_levels()


def test_strata_are_declared_in_one_line():
    a, b, c = strata("a, b c")
    assert (a.name, b.name, c.name) == ("a", "b", "c")
    assert prompt_group != domain
    assert Stratum("a") == a


# ---------------------------------------------------------------- documents that are not hierarchies


def document(**changes):
    return {**json.loads(two_levels().model_dump_json()), **changes}


def test_the_document_itself_loads():
    assert Hierarchy.model_validate(document()) == two_levels()


BROKEN = {
    "extra key": ({"extra": 1}, "extra"),
    "strata are a text": ({"strata": "token"}, "strata"),
    "gates are a list": ({"gates": ["identity_gate()"]}, "gates"),
    "gate is a number": ({"gates": {"token": 1, "trajectory": "identity_gate()"}}, "the gate on 'token'"),
    "name is a number": ({"name": 1}, "name"),
    "name is a keyword": ({"name": "class"}, "class"),
    "a stratum's name has a space": ({"strata": ["token", "my stratum", "trajectory"]}, "strata"),
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
    "missing gate": ({"gates": {"token": "identity_gate()"}}, "trajectory"),
    "gate on an unknown stratum": ({"gates": {**document()["gates"], "domain": "identity_gate()"}}, "domain"),
    "unknown fibration end": ({"fibrations": [{"source": "token", "target": "x", "kernel": "uniform()"}]}, "'x'"),
    "no kernel": ({"fibrations": [{"source": "token", "target": "trajectory"}]}, "kernel"),
    "default out of bounds": ({"parameters": [{"name": "C", "default": -1, "per_channel": True}]}, "'C'"),
    "default per unknown channel": ({"parameters": [{"name": "C", "default": {"up": 1}, "per_channel": True}]}, "up"),
    "default of the wrong type": ({"parameters": [{"name": "C", "default": "0.1"}]}, "default"),
    "empty range": ({"parameters": [{"name": "C", "lower": 1, "upper": 1}]}, "'C'"),
    "a parameter twice": ({"parameters": [{"name": "C", "default": 0.1}, {"name": "C", "default": 0.2}]}, "'C'"),
    "a parameter called like a stratum": ({"parameters": [{"name": "C"}, {"name": "token"}]}, "'token'"),
    "a stratum twice": ({"strata": ["token", "token", "trajectory"]}, "'token'"),
    "attribute on an unknown stratum": ({"attributes": [{"name": "w", "on": "x"}]}, "'x'"),
    "unknown law": ({"gives_up": {"gravity": "why not"}}, "gravity"),
    "a law that cannot be given up": ({"gives_up": {"reflecting": "why not"}}, "reflecting"),
    "a law given up without a reason": ({"gives_up": {"first_order": " "}}, "reason"),
    "null": ({"decomposition": None}, "decomposition"),
    "too many strata": ({"strata": [f"s{i}" for i in range(65)]}, "'strata'\n  required: a list with at most 64 in it"),
    "no strata": ({"strata": []}, "'strata'\n  required: a list with at least 1 in it"),
    "a long text": ({"objective": "trajectory_mean()" + " " * 20_000}, "objective"),
}  # fmt: skip


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
    with pytest.raises(SpecError, match=r"^the document is (no hierarchy: (it is|no 'name')|nested too deeply)"):
        Hierarchy.model_validate_json(text)


# What is written over the document, and what the error says: its place, its rule, and the next step.
NAMED = {
    "unknown field": ({"orthogonalize": 1}, "unknown field 'orthogonalize'", "one of name, strata,", "did you mean 'orthogonalise'?"),
    "misspelt kernel": (
        {"fibrations": [{"source": "token", "target": "trajectory", "kernal": "uniform()"}]},
        "unknown field 'kernal' of the fibration token → trajectory", "one of source, target, kernel", "did you mean 'kernel'?",
    ),
    "no kernel": ({"fibrations": [{"source": "token", "target": "trajectory"}]}, "no 'kernel' in the fibration token → trajectory", "all of source, target, kernel", ""),
    "default": ({"parameters": [{"name": "C", "default": "0.1"}]}, "'default' of parameter 'C'", "a number, one each for '+' and '-', or null", ""),
    "assumption": ({"assume": [{"balance": ["token", "trajectory"]}]}, "entry 1 of 'assume'", '{"balanced": [A, B]}, or {"populated": A, "over": B}', "did you mean 'balanced'?"),
    "stratum": ({"strata": ["token", "my stratum"]}, "entry 2 of 'strata'", "a letter, then letters", ""),
    "gate": ({"gates": {"token": 1}}, "the gate on 'token'", "a text", ""),
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
        ('{"source":', '{"kernel":"x","source":', "'kernel' is given twice in the fibration token → trajectory", "'x' and 'uniform()'"),
    ],
)  # fmt: skip
def test_a_key_given_twice_is_refused(old, new, what, found, tmp_path):
    """Readers of JSON keep the last one, silently."""
    text = two_levels(gates={trajectory: identity_gate(), token: identity_gate()}).model_dump_json()
    twice = text.replace(old, new, 1)
    assert twice != text
    file = tmp_path / "twice.json"
    file.write_text(twice)
    for call, source in (
        (lambda: Hierarchy.model_validate_json(twice), "the document"),
        (lambda: load(file), f"'{file}'"),
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


@pytest.mark.parametrize("text", HOSTILE, ids=lambda t: repr(t[:40]))
def test_hostile_text_in_a_document(text, capsys):
    for place in (
        {"gates": {"token": text, "trajectory": "identity_gate()"}},
        {"decomposition": text},
        {"objective": text},
    ):
        if text in ("residual", "C"):
            continue
        with pytest.raises((SpecError, ValidationError)):
            Hierarchy.model_validate(document(**place))
    kernel = [{"source": "token", "target": "trajectory", "kernel": text}]
    with pytest.raises((SpecError, ValidationError)):
        Hierarchy.model_validate(document(fibrations=kernel))
    assert capsys.readouterr().out == ""
