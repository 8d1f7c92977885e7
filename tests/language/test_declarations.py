"""Invalid declarations are refused with messages that name the object, the rule and the next step."""

import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from support import check, domain, operator, spec, token, trajectory, turn

import fibration
from fibration import (
    Attribute,
    Decomposition,
    Fibration,
    FibrationError,
    Gate,
    Hierarchy,
    LawError,
    MarkovKernel,
    Objective,
    Parameter,
    ParameterError,
    SpecError,
    advantage,
    aggregate_gate,
    balanced,
    clip_gate,
    constant_normaliser,
    count,
    decomposition,
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
from fibration.language.atoms import Stratum

DOMAIN = operator(spec("fiberpo_domain"))


both = {"+": 0.2, "-": 0.1}


def two_levels(**changes):
    arguments = dict(
        name="mine",
        fibrations=[Fibration(token, trajectory, uniform())],
        gates={trajectory: identity_gate(), token: identity_gate()},
        decomposition=log_ratio(),
        objective=trajectory_mean(),
    )
    return lambda: Hierarchy(**{**arguments, **changes})


def same(name, **other):
    """Two parameters of one name on the two levels."""
    return {trajectory: clip_gate(Parameter(name)), token: clip_gate(Parameter(name, **other))}


BATCH_BUDGET = Parameter("C", per_channel=True, default=both)
SPEC_ERRORS = {
    "no gate on a stratum": (
        two_levels(gates={token: identity_gate()}),
        dict(what=("hierarchy 'mine' has no gate on trajectory",), required="one gate per stratum", remedy="identity_gate()"),
    ),
    "gate on an unknown stratum": (
        two_levels(gates={trajectory: identity_gate(), token: identity_gate(), domain: identity_gate()}),
        dict(what=("'mine' has a gate on domain, which no fibration joins",), required="token, trajectory"),
    ),
    "no gates": (two_levels(gates={}, fibrations=[]), dict(what="hierarchy 'mine' has no gate")),
    "two parameters of one name": (
        two_levels(gates=same("bound", default=0.5)),
        dict(what=("hierarchy 'mine' declares 'bound' twice, differently",), required="one declaration per name", found="default=0.5", remedy="reuse one object"),
    ),
    "two bounds of one name": (two_levels(gates=same("bound", upper=1)), dict(what="declares 'bound' twice", found="upper=1")),
    "two attributes of one name": (
        two_levels(gates={trajectory: Gate(residual * total(Attribute("w", on=token))), token: Gate(residual * Attribute("w", on=token, positive=False))}),
        dict(what="declares 'w' twice"),
    ),
    "a parameter called like a stratum": (two_levels(gates={trajectory: identity_gate(), token: clip_gate(Parameter("token"))}), dict(what="uses the name 'token' for two things")),
    "a parameter called like an attribute": (
        two_levels(gates={trajectory: identity_gate(), token: Gate(residual * Parameter("w") * Attribute("w", on=token))}),
        dict(what="uses the name 'w' for two things"),
    ),
    "gate of the wrong type": (two_levels(gates={trajectory: residual, token: identity_gate()}), dict(what=("hierarchy 'mine': the gate on trajectory is residual",), required="a Gate", remedy="Gate(formula)")),
    "gates of the wrong type": (two_levels(gates=[identity_gate()]), dict(what=("hierarchy 'mine'", "gates"), remedy="gates={token: identity_gate()}")),
    "gated by name": (two_levels(gates={"token": identity_gate(), trajectory: identity_gate()}), dict(what="the gated stratum is 'token'", required="a Stratum")),
    "fibration of the wrong type": (two_levels(fibrations=[(token, trajectory)]), dict(what="the fibration is (token, trajectory)", required="a Fibration", remedy="Fibration(token, trajectory")),
    "a lone fibration": (two_levels(fibrations=3), dict(what="the collection of fibrations is 3", remedy="fibrations=[")),
    "decomposition of the wrong type": (two_levels(decomposition=log_ratio), dict(what="the decomposition is", required="a Decomposition")),
    "objective of the wrong type": (two_levels(objective="mean"), dict(what="the objective is 'mean'", required="Objective", remedy="trajectory_mean()")),
    "kernel of the wrong type": (lambda: Fibration(token, trajectory, uniform), dict(what="a fibration's kernel is", required="a MarkovKernel", remedy="write uniform()")),
    "an expression as a kernel": (lambda: Fibration(token, trajectory, 1 / count(token)), dict(what="a fibration's kernel is 1/count(token)", remedy="MarkovKernel(weight)")),
    "a name as a source": (lambda: Fibration("token", trajectory, uniform()), dict(what="a fibration's source is 'token'", required="a Stratum")),
    "an unknown law": (two_levels(gives_up={"beauty": "why"}), dict(what=("hierarchy 'mine' gives up 'beauty'",), required="first_order")),
    "a foundation": (two_levels(gives_up={"markov": "why"}), dict(what="gives up 'markov', on which all the others rest", remedy="mend the hierarchy")),
    "without a reason": (two_levels(gives_up={"first_order": "  "}), dict(what="gives up 'first_order' without a reason")),
    "objective reads the residual": (two_levels(objective=constant_normaliser(residual)), dict(what=("hierarchy 'mine'", "objective", "residual"), required="counts")),
    "objective reads the advantage": (two_levels(objective=Objective(weight=advantage)), dict(what=("objective", "advantage"))),
    "objective reads tokens": (two_levels(objective=Objective(weight=1 / count(token, over=token))), dict(what=("objective", "count(token, over=token)"))),
    "objective per channel": (two_levels(objective=constant_normaliser(BATCH_BUDGET)), dict(what=("objective", "C"))),
    "objective of unknown strata": (two_levels(objective=Objective(weight=1 / count(domain))), dict(what=("objective", "count(domain)"))),
    "channels": (lambda: Decomposition({"up": residual}, exp(gated(""))), dict(what="a decomposition has the channels ('up',)", required="'+', '-'")),
    "half a split": (lambda: decomposition(plus=token_log_ratio, recovery=exp(gated("+"))), dict(what="density=, or both plus= and minus=")),
    "no density": (lambda: decomposition(recovery=exp(gated(""))), dict(what="density=, or both plus= and minus=")),
    "an unknown channel": (lambda: gated("up"), dict(what="'up'", required="'+' or '-'")),
    "an unknown channel's density": (lambda: density(trajectory, "up"), dict(what="'up'")),
    "density of a name": (lambda: density("trajectory"), dict(what="density takes a stratum, not 'trajectory'")),
    "count over a name": (lambda: count(token, over="trajectory"), dict(what="not 'trajectory'")),
    "total of a number": (lambda: total(3), dict(what="total takes an Attribute or a formula, not 3")),
    "total over a name": (lambda: total(Attribute("w", on=token), over="x"), dict(what="'x'")),
    "missing argument": (lambda: aggregate_gate(0.1), dict(what=("aggregate_gate", "rollback"), required="aggregate_gate(budget")),
    "unknown argument": (lambda: clip_gate(0.1, limit=1), dict(what=("clip_gate", "limit"), required="clip_gate(bound")),
    "argument of the wrong type": (lambda: clip_gate("0.1"), dict(what=("clip_gate: argument 'bound'", "'0.1'"))),
    "a stratum as a bound": (lambda: clip_gate(token), dict(what=("clip_gate: argument 'bound'", "Stratum"))),
    "an infinite bound": (lambda: clip_gate(math.inf), dict(what=("clip_gate: argument 'bound'", "inf"), required="finite numbers")),
    "a boolean gate": (lambda: Gate(True), dict(what=("a gate cannot be True",))),
    "a condition as a weight": (lambda: MarkovKernel(count(token) > 1), dict(what="a kernel weight cannot be the condition")),
    "a condition as an objective": (lambda: Objective(weight=count(token) > 1), dict(what="an objective's weight cannot be the condition")),
    "default below": (lambda: Parameter("p", default=-1), dict(what="parameter 'p': the default is -1")),
    "default at the bound": (lambda: Parameter("p", default=1, upper=1), dict(what="parameter 'p'", required="strictly inside (0, 1)")),
    "default per channel, undeclared": (lambda: Parameter("p", default=both), dict(what=("parameter 'p'", "per channel"), remedy="per_channel=True")),
    "default of one channel": (lambda: Parameter("p", default={"+": 1}, per_channel=True), dict(what=("parameter 'p'", "'+'"), required="one each for '+' and '-'")),
    "an empty range": (lambda: Parameter("p", lower=1, upper=1), dict(what="parameter 'p' has the empty range (1, 1)", required="lower < upper")),
    "an empty range of an attribute": (lambda: Attribute("p", on=token, upper=0), dict(what="attribute 'p' has the empty range (0, 0]", required="lower < upper")),
    "an endless range of an attribute": (lambda: Attribute("p", on=token, upper=math.inf), dict(what="attribute 'p' has the range (0, inf]", required="finite")),
    "a positive attribute that may be 0": (lambda: Attribute("p", on=token, lower=0), dict(what="attribute 'p' is declared with positive=True, and lower=0", remedy="leave lower out")),
    "an attribute that is positive and does not say so": (lambda: Attribute("p", on=token, positive=False, lower=1), dict(what="positive=False, and lower=1", required="positive=True")),
    "a huge default": (lambda: Parameter("p", default=10**5000), dict(what="a parameter's default is a number")),
    "a huge default of a channel": (lambda: Parameter("p", default={"+": 10**400, "-": 1}, per_channel=True), dict(what="a parameter's default is a number")),
    "a text as a default of a channel": (lambda: Parameter("p", default={"+": "x", "-": 1}, per_channel=True), dict(what="a parameter's default is a number")),
    "a stratum as a scale": (lambda: signed_log_ratio(scale=turn), {}),
    "a number as strata": (lambda: strata(3), dict(what="strata(3)", required="one or more different names")),
    "a text as a default": (lambda: Parameter("p", default="0.1"), dict(what="a parameter's default is a number")),
    "a comparison by sign": (lambda: where(residual == 0, residual, 0), dict(what="an argument of 'where' cannot be False", remedy="== and != compare what was written")),
    "the larger by Python": (lambda: max(residual, 0), dict(what="'residual < 0' has no truth value", remedy="maximum and minimum")),
    "a function of numpy": (lambda: np.maximum(residual, 0), dict(what="'residual' is a formula", remedy="use fibration.maximum")),
    "a function of torch": (lambda: torch.clamp(residual, -1, 1), dict(what="'residual' is a formula", remedy="use fibration.clip")),
    "a power of a formula": (lambda: 2**residual, dict(what="cannot raise 2 to the power residual", remedy="exp(y*log(x))")),
    "a tensor": (lambda: residual * torch.tensor(0.5), dict(what="cannot be a Tensor", remedy="one number is float(...); numbers of elements are an Attribute's")),
    "a tensor on the left": (lambda: torch.tensor(0.5) * residual, dict(what="'residual' is a formula", remedy="write float(...) of tensor(0.5000)")),
    "an array on the left": (lambda: np.ones(2) * residual, dict(what="cannot be a ndarray", remedy="one number is float(...)")),
    "a stratum as a number": (lambda: residual / token, dict(what="cannot be a Stratum: token", remedy="count(token)")),
    "a function as a gate": (lambda: Gate(identity_gate), dict(what="a gate cannot be a function", remedy="call it")),
    "no kernel": (lambda: Fibration(token, trajectory), dict(what="the fibration token → trajectory has no kernel", remedy="write uniform()")),
    "a fibration of names": (lambda: Fibration("token", "trajectory", uniform()), dict(what="a fibration's source is 'token'", remedy="strata('token')")),
    "gates on names": (two_levels(gates={"token": identity_gate()}), dict(what="the gated stratum is 'token'", remedy="the stratum and not its name")),
    "one group": (two_levels(groups=domain), dict(what="hierarchy 'mine': groups=domain", required="a list", remedy="groups=[prompt_group]")),
    "one fibration": (two_levels(fibrations=Fibration(token, trajectory, uniform())), dict(what="fibrations=Fibration(token, trajectory", required="a list")),
    "one assumption": (two_levels(assume=balanced(domain, turn)), dict(what="assume=balanced(domain, turn)", required="a list")),
    "a text of groups": (two_levels(groups="domain"), dict(what="groups='domain'", required="a list")),
    "rows that are a formula": (two_levels(rows=count(token)), dict(what="the stratum of the rows is count(token)", required="a Stratum")),
    "a law given up for nothing": (two_levels(gives_up={"inward": None}), dict(what="the reason for giving up inward is None", required="a text", remedy="gives_up={")),
    "a slip in a law": (two_levels(gives_up={"inwards": "why"}), dict(what="gives up 'inwards'", remedy="did you mean 'inward'?")),
    "a parameter on a name": (lambda: Parameter("p", on="token"), dict(what="parameter 'p': on='token'", required="a Stratum", remedy="strata(")),
    "an attribute on a name": (lambda: Attribute("p", on="token"), dict(what="attribute 'p': on='token'", required="a Stratum")),
    "a pair as a default": (lambda: Parameter("p", per_channel=True, default=(0.2, 0.1)), dict(what="a parameter's default is a number", remedy="default={'+': ..., '-': ...}")),
    "a slip in a shipped name": (lambda: load("fiberpo_domian"), dict(what="cannot load 'fiberpo_domian'", remedy="did you mean 'fiberpo_domain'?")),
    "a scale that is a condition": (lambda: clip_gate(1).per(count(token) > 1), {}),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("which", SPEC_ERRORS)
def test_invalid_declarations_are_refused(which):
    call, expected = SPEC_ERRORS[which]
    with pytest.raises(FibrationError) as caught:
        call()
    check(caught, type(caught.value), **expected)
    assert isinstance(caught.value, (SpecError, ParameterError))


@pytest.mark.parametrize("value", [np.float64(0.2), np.float32(0.2), np.float16(0.2)], ids=lambda v: v.dtype.name)
def test_numbers_of_numpy_are_the_decimals_that_they_print_as(value):
    assert clip_gate(value) == clip_gate(0.2) and Parameter("p", default=value) == Parameter("p", default=0.2)
    assert Parameter("p", default={"+": value, "-": 1}, per_channel=True).default["+"] == 0.2
    assert (value * residual, residual - value) == (0.2 * residual, residual - 0.2)
    assert (value - residual, value / residual, str(value < residual)) == (
        0.2 - residual,
        0.2 / residual,
        "0.2 < residual",
    )


def test_whole_numbers_of_numpy_are_numbers():
    two = np.int64(2)
    assert np.array(0.5) * residual == residual.__rmul__(np.array(0.5)) == 0.5 * residual
    assert (two * residual, residual**2, two + count(token)) == (2 * residual, residual**2, 2 + count(token))
    assert gated() == gated("")


def test_the_second_argument_needs_no_keyword():
    assert Parameter("p", 0.2) == Parameter("p", default=0.2) and Attribute("w", token) == Attribute("w", on=token)


NAMES = [
    "my stratum", "class", "lambda", "None", "True", "__import__", "_hidden", "a__b", "residual", "advantage", "token_log_ratio", "gated", "density",
    "count", "total", "where", "minimum", "maximum", "clip", "abs", "exp", "log", "sqrt", "source", "target", "torch", "objective", "coefficients",
    "log_ratio", "cotangent", "and", "or", "not", "", "1st", "a-b", "a.b", "a\n", "a" * 64, "é", "Ａ", "x;import os", "x)", "\x00", "a b",
]  # fmt: skip


@pytest.mark.parametrize("name", [*NAMES, 3, None, b"x", ["x"], 1.5], ids=repr)
def test_invalid_names_are_refused(name):
    """Names become identifiers of generated code."""
    sample = Attribute("w", on=token)
    assert sample.name == "w"
    for what, make in [
        ("a stratum", Stratum), ("a parameter", Parameter), ("an attribute", lambda n: Attribute(n, on=token)),
        ("a hierarchy", lambda n: two_levels(name=n)()),
    ]:  # fmt: skip
        with pytest.raises(SpecError) as caught:
            make(name)
        check(
            caught,
            SpecError,
            what=(what, repr(name)),
            required="a letter, then letters, digits or underscores",
            remedy="choose another name",
        )


@pytest.mark.parametrize("name", ["a", "A1", "a_b", "token", "x" * 63, "Class", "self", "print", "batch", "none", "C_"])
def test_valid_names_are_accepted(name):
    assert Stratum(name).name == Parameter(name).name == name


def test_an_invalid_name_among_several_is_named():
    with pytest.raises(SpecError, match="a stratum cannot be called 'my-stratum'"):
        strata("token my-stratum")


def test_fibrations_may_come_from_a_generator():
    """A generator of fibrations is read completely, once."""
    h = two_levels(fibrations=(f for f in [Fibration(token, trajectory, uniform())]))()
    assert len(h.fibrations) == 1


@pytest.mark.sampled
@pytest.mark.parametrize(
    "changes",
    [
        {"gates": {trajectory: Gate(residual / 0), token: identity_gate()}},
        {"gates": {trajectory: Gate(residual + (residual - residual) / 0), token: identity_gate()}},
        {"fibrations": [Fibration(token, trajectory, MarkovKernel(1 / (count(token) * 0)))]},
        {"decomposition": log_ratio(scale=0)},
    ],
    ids=lambda c: next(iter(c)),
)
@pytest.mark.parametrize("gives_up", [{}, {"first_order": "why", "recovery": "why", "identity": "why"}], ids=len)
def test_a_division_by_zero_is_refused_before_it_runs(changes, gives_up):
    with pytest.raises((LawError, SpecError)) as caught:
        fibration.compile(two_levels(**changes, gives_up=gives_up)())
    assert "'mine'" in str(caught.value)


def test_a_value_of_the_wrong_type_raises_pydantics_error():
    with pytest.raises(ValidationError):
        Parameter("p", per_channel="perhaps")
