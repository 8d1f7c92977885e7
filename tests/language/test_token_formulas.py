"""Weights, conditions and statistics of tokens: what they may read, and reading back JSON and printed text."""

import json
from fractions import Fraction

import pytest
from support import refuses_a_spec, token, trajectory

import fibration
from fibration import (
    Attribute,
    Fibration,
    FibrationError,
    Gate,
    Hierarchy,
    Objective,
    Parameter,
    SpecError,
    advantage,
    channel_sign,
    clip_gate,
    constant_normaliser,
    count,
    decomposition,
    density,
    exp,
    gated,
    identity_gate,
    largest,
    load,
    log_prob,
    log_ratio,
    mass,
    mean,
    minimum,
    policies,
    proportional,
    pull,
    quantile,
    ratio_deviation,
    residual,
    sign,
    signed_log_ratio,
    some,
    stop,
    strata,
    token_log_ratio,
    token_mean,
    total,
    trajectory_mean,
    uniform,
    where,
)
from fibration.language.atoms import in_channel
from fibration.language.expressions import as_expression
from fibration.language.fixed import Here, at_infinity
from fibration.language.hierarchy import fingerprint, gates
from fibration.language.outline import home
from fibration.language.statistics import Aggregate, rewritten, within
from fibration.language.traversal import atoms, evaluate, substitute

prompt_group, domain, batch, image = strata("prompt_group domain batch image")
current, old, rollout, reference = policies("current old rollout reference")
RHO = exp(log_prob(old) - log_prob(rollout))
C = Parameter("C", default=2.0)
q = Parameter("q", default=0.5, upper=1)
split = Parameter("split", default=0.5, per_channel=True)
weight = Attribute("weight", on=token)


def three(**changes):
    """Tokens, trajectories, prompt groups: with two channels."""
    arguments = dict(
        name="mine",
        fibrations=[
            Fibration(token, trajectory, kernel=uniform()),
            Fibration(trajectory, prompt_group, kernel=proportional(count(token))),
        ],
        gates={prompt_group: identity_gate(), trajectory: identity_gate(), token: clip_gate(C)},
        decomposition=signed_log_ratio(),
        objective=trajectory_mean(),
    )
    return Hierarchy(**{**arguments, **changes})


def weighed(*formulas, **changes):
    objective = trajectory_mean()
    for f in formulas:
        objective = objective.weigh(f)
    return three(objective=objective, **changes)


def gate(g, stratum=token, **changes):
    gates = {prompt_group: identity_gate(), trajectory: identity_gate(), token: identity_gate()}
    return three(gates={**gates, stratum: g}, **changes)


# ---------------------------------------------------------------- as it was written

PER_CHANNEL = {"+": clip_gate(C), "-": clip_gate(0.3).inward(ceiling=1)}
WRITTEN = {
    "weights": weighed(minimum(RHO, C), RHO * advantage),
    "kept": three(objective=token_mean().keep(RHO <= C, normaliser="kept").keep(some(advantage > 0, over=trajectory))),
    "both, and a score": three(objective=constant_normaliser(8).weigh(RHO).keep(RHO > 0.5).score().weigh(2)),
    "statistics": weighed(
        mean(mean(log_prob(old), over=batch) - log_prob(current), over=trajectory)
        + largest(-token_log_ratio, over=prompt_group)
        + total(weight * advantage, over=trajectory)
        + quantile(log_prob(reference), q, over=batch)
        + quantile(weight, 0.05, over=trajectory)
    ),
    "a gate per channel": gate(PER_CHANNEL),
    "what pulls": gate(Gate(residual).inward(pull=advantage * channel_sign), prompt_group),
    "stopped": gate(Gate(exp(stop(residual)) * residual)),
    "rows that no gate is on": Hierarchy(
        name="mine",
        gates={token: clip_gate(1)},
        decomposition=ratio_deviation(),
        objective=token_mean().weigh(mean(RHO, over=trajectory) / count(token, over=batch)),
    ),
    "a decomposition that reads the advantage": three(
        decomposition=decomposition(
            density=where(advantage > 0, token_log_ratio, C * token_log_ratio), recovery=gated("")
        )
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_json_and_printed_text_keep_every_token_formula(name):
    h = WRITTEN[name]
    text = h.model_dump_json()
    again = Hierarchy.model_validate_json(text)
    assert again == h
    assert hash(again) == hash(h)
    assert fingerprint(again) == fingerprint(h)
    assert again.model_dump_json() == text
    assert again.policies == h.policies
    assert [again.gate(s) for s in again.order] == [h.gate(s) for s in h.order]
    words = {n: getattr(fibration, n) for n in fibration.__all__}
    words |= {s.name: s for s in (token, trajectory, prompt_group, batch)}
    words |= {n: globals()[n] for n in ("current", "old", "rollout", "reference", "C", "q", "weight")}
    assert eval(repr(h), words) == h


def test_other_weights_are_another_hierarchy():
    plain = trajectory_mean()
    objectives = [
        plain, plain.weigh(RHO), plain.weigh(1 / RHO), plain.weigh(RHO).weigh(RHO), plain.keep(RHO <= 2),
        plain.keep(RHO <= 2, normaliser="kept"), plain.weigh(mean(RHO, over=trajectory)), plain.weigh(mean(RHO, over=batch)),
        plain.weigh(largest(RHO, over=batch)), plain.weigh(quantile(RHO, 0.5, over=batch)), plain.weigh(quantile(RHO, 0.25, over=batch)),
    ]  # fmt: skip
    found = [three(objective=o) for o in objectives]
    for seen in ({fingerprint(h) for h in found}, {hash(h) for h in found}, {h.model_dump_json() for h in found}):
        assert len(seen) == len(found)
    assert all(a != b for i, a in enumerate(found) for b in found[:i])
    assert [h.replace(name="mine") for h in found] == found
    assert gate(PER_CHANNEL) != gate(dict(PER_CHANNEL, **{"+": clip_gate(3)}))


def test_weights_and_conditions_add_up():
    objective = token_mean().weigh(RHO).keep(RHO > 1).weigh(C).keep(RHO < 3, normaliser="kept")
    assert objective.weighed == (RHO, C)
    assert [(k.condition, k.normaliser) for k in objective.kept] == [(RHO > 1, "all"), (RHO < 3, "kept")]
    assert objective.formulas == (RHO, C, RHO > 1, RHO < 3)
    assert token_mean().formulas == ()


def test_a_gate_per_channel_is_read_on_its_channel():
    h = gate({"+": clip_gate(1), "-": clip_gate(2)})
    assert repr(h.gates[token]) == '{"+": clip_gate(1), "-": clip_gate(2)}'
    assert h.model_dump(mode="json")["gates"]["token"] == {"+": "clip_gate(1)", "-": "clip_gate(2)"}
    assert h.gate(token) == where(channel_sign > 0, clip_gate(1).expression, clip_gate(2).expression)
    per_channel = [e for s, _, e in gates(h) if s == token]
    assert [evaluate(e, {residual: Fraction(9)}) for e in per_channel] == [1, 2]
    assert [evaluate(in_channel(residual * channel_sign, c), {residual: Fraction(9)}) for c in ("", "+", "-")] == [
        9,
        9,
        -9,
    ]
    scaled = h.gates[token].per(4)
    assert scaled == gate({"+": clip_gate(1).per(4), "-": clip_gate(2).per(4)}).gates[token]
    inward = h.gates[token].inward(ceiling=3)
    assert inward == gate({"+": clip_gate(1).inward(ceiling=3), "-": clip_gate(2).inward(ceiling=3)}).gates[token]


# ---------------------------------------------------------------- what cannot be read

RESIDUAL = "gradients flow"
TREE = dict(
    fibrations=[Fibration(token, trajectory, kernel=uniform(0.5)), Fibration(image, trajectory, kernel=uniform(0.5))],
    gates={s: identity_gate() for s in (token, image, trajectory)},
)
WRONG = {
    "the residual": (lambda: weighed(residual), "the weight residual reads residual", RESIDUAL, "token_log_ratio"),
    "a density": (lambda: weighed(density(trajectory)), "reads density(trajectory)", RESIDUAL, "token_log_ratio"),
    "a gated density": (lambda: weighed(gated("+")), 'reads gated("+")', RESIDUAL, "token_log_ratio"),
    "the mass": (lambda: weighed(mass), "reads mass", "the mass is what kernels spread", "count"),
    "a channel": (lambda: weighed(channel_sign), "reads channel_sign", "on every channel", "token_log_ratio"),
    "what pulls": (lambda: weighed(pull), "reads pull", "for its gate", "advantage"),
    "a parameter per channel": (lambda: weighed(split), "reads split", "on every channel", "per_channel=False"),
    "a parameter elsewhere": (lambda: weighed(Parameter("p", on=domain)), "reads p", "no token lies over a 'domain'", "trajectory"),
    "an attribute elsewhere": (lambda: weighed(Attribute("a", on=domain)), "reads a", "no token lies over a 'domain'", "trajectory"),
    "a count elsewhere": (lambda: weighed(count(token, over=domain)), "reads count(token, over=domain)", "no token lies over a 'domain'", "prompt_group"),
    "a count upside down": (lambda: weighed(count(prompt_group, over=trajectory)), "over=trajectory)", "no 'prompt_group' lies over a 'trajectory'", "strata"),
    "a count of what is no token's": (lambda: weighed(count(trajectory)), "reads count(trajectory)", "no 'trajectory' lies over a token", "over= one of token"),
    "one leaf of two": (lambda: weighed(count(image), **TREE), "reads count(image)", "elements of token and image, not of image alone", "trajectory"),
    "an attribute of one leaf": (lambda: weighed(weight, **TREE), "reads weight", "not of token alone", "trajectory"),
    "a statistic over nothing": (lambda: weighed(mean(advantage)), "reads mean(advantage)", "that token's own", "over= one of token, trajectory, prompt_group, batch"),
    "a statistic elsewhere": (lambda: weighed(mean(advantage, over=domain)), "reads mean(", "no token lies over a 'domain'", "trajectory"),
    "a statistic of a residual": (lambda: weighed(mean(residual, over=batch)), "the statistic mean(residual, over=batch) reads residual", RESIDUAL, ""),
    "a statistic of a statistic": (lambda: weighed(mean(mean(residual, over=batch), over=batch)), "the statistic mean(residual, over=batch) reads", RESIDUAL, ""),
    "a statistic in a gate": (lambda: gate(Gate(residual * mean(residual, over=batch))), "the statistic mean(residual, over=batch) reads", RESIDUAL, ""),
    "a condition": (lambda: three(objective=token_mean().keep(residual > 0)), "keep(residual > 0) reads residual", RESIDUAL, ""),
    "a level that varies finer": (
        lambda: weighed(quantile(advantage, Parameter("p", upper=1, on=trajectory), over=batch)),
        "reads quantile(advantage, p, over=batch)", "the level 'p' varies over trajectory", "batch",
    ),
    "a level that varies finer than the gate's stratum": (
        lambda: gate(clip_gate(quantile(token_log_ratio, Parameter("p", upper=1, on=token))), trajectory),
        "the gate on trajectory reads quantile(token_log_ratio, p)", "the level 'p' varies over token", "trajectory",
    ),
    "a statistic of counts": (lambda: three(objective=constant_normaliser(mean(count(token), over=batch))), "the objective weighs tokens by mean(", "", ".weigh(...)"),
    "a log-prob as a count": (lambda: three(objective=constant_normaliser(log_prob(old))), "the objective weighs tokens by log_prob(old)", "", ".weigh(...)"),
    "stop of a count": (lambda: gate(clip_gate(stop(count(token)))), "the gate on token says stop(count(token))", "no gradient to stop", "write count(token)"),
    "stop of a parameter": (lambda: gate(clip_gate(stop(C))), "says stop(C)", "no gradient to stop", "write C"),
    "stop of the advantage": (lambda: gate(Gate(residual * stop(advantage))), "says stop(advantage)", "no gradient", ""),
    "stop of a statistic": (lambda: gate(Gate(residual * stop(mean(token_log_ratio, over=batch)))), "says stop(mean(", "no gradient", ""),
    "stop of a sign": (lambda: gate(Gate(residual * stop(sign(residual)))), "says stop(sign(residual))", "no gradient", ""),
    "stop twice": (lambda: gate(Gate(residual * stop(stop(residual)))), "says stop(stop(residual))", "stop(residual) has no gradient", ""),
    "stop in a kernel": (lambda: three(fibrations=[Fibration(token, trajectory, kernel=proportional(stop(count(token))))], gates={s: identity_gate() for s in (token, trajectory)}), "kernel token → trajectory says stop(", "no gradient", ""),
    "stop in a normaliser": (lambda: three(objective=constant_normaliser(stop(C))), "the objective says stop(C)", "no gradient", ""),
    "stop in a weight": (lambda: weighed(stop(exp(token_log_ratio))), "the weight stop(exp(token_log_ratio)) says stop(", "no gradient flows through weights", "write exp(token_log_ratio)"),
    "stop in a statistic": (lambda: gate(Gate(residual * mean(stop(token_log_ratio), over=batch))), "the statistic mean(", "no gradient flows through", ""),
    "a channel's gate alone": (lambda: gate({"+": clip_gate(1)}), "the gate on token is {'+': clip_gate(1)}", "", '{"+": gate, "-": gate}'),
    "a number as a channel's gate": (lambda: gate({"+": clip_gate(1), "-": 1}), "the gate on token is", "", '{"+": gate, "-": gate}'),
    "a mapping in a mapping": (lambda: gate({"+": clip_gate(1), "-": gate(PER_CHANNEL).gates[token]}), "the gate on token is", "", '{"+": gate, "-": gate}'),
    "channels where there is one": (lambda: gate(PER_CHANNEL, decomposition=log_ratio()), "has a gate per channel on token", "one channel", "signed_log_ratio()"),
    "a policy like a stratum": (lambda: weighed(log_prob(policies("trajectory")[0])), "uses the name 'trajectory' for two things", "", "one meaning"),
    "a policy like a parameter": (lambda: weighed(C * log_prob(policies("C")[0])), "uses the name 'C' for two things", "", "one meaning"),
    "a policy twice": (lambda: policies("old old"), "policies('old old')", "", "different names"),
    "no policy": (lambda: policies(""), "policies('')", "", "different names"),
    "a policy called mean": (lambda: policies("mean"), "a policy cannot be called 'mean'", "", "a letter"),
    "log_prob of a name": (lambda: log_prob("rollout"), "log_prob takes a policy, not 'rollout'", "", "policies("),
    "a level above 1": (lambda: quantile(advantage, 1.5), "the level of a quantile is 1.5", "", "from 0 to 1"),
    "a level below 0": (lambda: quantile(advantage, -0.1), "the level of a quantile is -0.1", "", "from 0 to 1"),
    "a level without bounds": (lambda: quantile(advantage, C), "the level of a quantile is C", "", "upper=1"),
    "a level per channel": (lambda: quantile(advantage, Parameter("p", upper=1, per_channel=True)), "the level of a quantile is p", "", "both channels"),
    "a level that is a count": (lambda: quantile(advantage, 1 / count(token)), "the level of a quantile is", "", "from 0 to 1"),
    "mean of a condition": (lambda: mean(advantage > 0), "mean takes a number, not advantage > 0", "", "where(condition, 1, 0)"),
    "some of a number": (lambda: some(advantage), "some takes a condition, not advantage", "", "a condition"),
    "a condition as a weight": (lambda: token_mean().weigh(RHO > 1), "a weight cannot be the condition", "", ".keep(...)"),
    "a number that is kept": (lambda: token_mean().keep(RHO), "the condition of keep(...) cannot be the number", "", "compare it"),
    "another normaliser": (lambda: token_mean().keep(RHO > 1, normaliser="some"), "normaliser='some'", "", "'all' or 'kept'"),
    "statistics without end": (lambda: deep(200), "is too large", "", "at most 100 levels"),
}  # fmt: skip


def deep(n):
    formula = advantage
    for _ in range(n):
        formula = mean(formula, over=batch)
    return formula


@pytest.mark.parametrize("which", WRONG)
def test_token_formulas_refuse_quantities_that_no_token_has(which):
    refuses_a_spec(*WRONG[which])


def test_stop_is_allowed_where_a_gradient_flows():
    for g in (
        stop(residual),
        residual * stop(density(trajectory)),
        residual * stop(exp(residual)),
        residual * stop(abs(residual)),
    ):
        gate(Gate(g))
    held = decomposition(density=token_log_ratio, recovery=exp(gated("") - stop(gated(""))))
    assert stop(gated("")) in held.recovery.arguments[0].arguments
    three(decomposition=held)


def test_a_limit_removes_a_stop_without_a_gradient():
    """With an infinite parameter, a `stop` disappears if its operand has no gradient left."""
    limits = {
        residual * exp(stop(residual / C)): residual * exp(0),
        where(residual < C, residual, stop(residual)): residual,
        stop(minimum(residual, C)): stop(residual),
        stop(where(residual < C, 1, C)): as_expression(1),
    }
    for formula, limit in limits.items():
        assert at_infinity(formula, {C: 1}, Here(three().shape)) == limit
        gate(Gate(limit))


# ---------------------------------------------------------------- as JSON

DOCUMENT = json.loads(WRITTEN["kept"].model_dump_json())
BROKEN = {
    "a policy that nothing reads": ({"policies": ["rollout", "engine"]}, "declares the policy 'engine', which nothing uses"),
    "a policy that is not declared": ({"policies": []}, "objective: no policy 'rollout'\n  required: one of current, old\n  fix:      name it where policies are declared: \"policies\": [\"rollout\"]"),
    "a policy twice": ({"policies": ["rollout", "rollout"]}, "declares 'rollout' twice"),
    "a policy like a stratum": ({"policies": ["rollout", "token"]}, "declares 'token' twice"),
    "a policy that every call has": ({"policies": ["rollout", "old"]}, "a policy that a call is given cannot be called 'old'"),
    "a policy with a space": ({"policies": ["my rollout"]}, "'policies.0'"),
    "policies as a text": ({"policies": "rollout"}, "'policies'\n  required: a list"),
    "a stratum as a policy": ({"objective": "token_mean().weigh(log_prob(token))"}, "log_prob takes a policy, not token"),
    "a policy as a number": ({"objective": "token_mean().weigh(exp(rollout))"}, "the name 'rollout' means nothing here"),
    "an unknown method": ({"objective": "token_mean().weight(2)"}, "unknown method '.weight(...)'\n  required: for an objective: .score(), .weigh(formula), .keep(condition, normaliser)"),
    "a method without arguments": ({"objective": "token_mean().keep()"}, "wrong arguments to '.keep(...)'"),
    "an unknown argument": ({"objective": "token_mean().keep(advantage > 0, among=2)"}, "wrong arguments to '.keep(...)'"),
    "an argument twice": ({"objective": 'token_mean().keep(advantage > 0, normaliser="all", normaliser="all")'}, "an argument of 'keep' is given twice"),
    "a normaliser that is none": ({"objective": "token_mean().keep(advantage > 0, normaliser=1)"}, "'all' or 'kept'"),
    "a text as a weight": ({"objective": 'token_mean().weigh("kept")'}, "a weight cannot be a str"),
    "a method of pydantic's": ({"objective": "token_mean().model_dump()"}, "unknown method '.model_dump(...)'"),
    "a method of a kernel": ({"fibrations": [{"source": "token", "target": "trajectory", "kernel": "uniform().score()"}]}, "for a markovkernel: none"),
    "one channel's gate": ({"gates": {"token": {"+": "identity_gate()"}}}, "'gates.token'\n  required: a text, or one text each for '+' and '-'"),
    "a third channel's gate": ({"gates": {"token": {"+": "residual", "-": "residual", "0": "residual"}}}, "'gates.token'\n  required: a text, or one"),
    "a number as a channel's gate": ({"gates": {"token": {"+": "residual", "-": 1}}}, "'gates.token'\n  required: a text, or one"),
    "a list of gates": ({"gates": {"token": ["residual", "residual"]}}, "'gates.token'\n  required: a text, or one"),
    "a channel's gate that is none": ({"gates": {**DOCUMENT["gates"], "token": {"+": "residual", "-": "clip(1)"}}}, "gate on token, channel -"),
}  # fmt: skip


@pytest.mark.parametrize("which", BROKEN)
def test_wrong_documents_are_refused_in_words(which):
    changes, said = BROKEN[which]
    with pytest.raises(FibrationError) as caught:
        Hierarchy.model_validate_json(json.dumps(DOCUMENT | changes))
    assert said in str(caught.value)
    assert "pydantic" not in str(caught.value)


# ---------------------------------------------------------------- what others ask of it


def test_policies_are_those_that_formulas_name():
    assert [*WRITTEN["statistics"].policies] == ["current", "old", "reference"]
    assert [p.name for p in WRITTEN["statistics"].policies.values() if p.is_passed] == ["reference"]
    assert not load("fiberpo").policies
    assert [*gate(Gate(residual * exp(log_prob(rollout)))).policies] == ["rollout"]


def test_formulas_in_statistics_are_reached():
    inner = mean(C * advantage, over=trajectory)
    formula = C + quantile(inner + C, q, over=batch)
    assert [*within(formula)] == [formula, inner + C, C * advantage, q]
    put = rewritten(formula, lambda e: substitute(e, {C: as_expression(2), q: as_expression(0.5)}))
    assert put == 2 + quantile(mean(2 * advantage, over=trajectory) + 2, 0.5, over=batch)
    assert rewritten(formula, lambda e: e) == formula


def test_parameters_of_weights_and_statistics_have_one_value_for_the_batch():
    tokens = Parameter("tokens", default=1.0)
    per_row = Parameter("per_row", default=1.0, on=trajectory)
    for h in (
        gate(clip_gate(tokens), trajectory, objective=token_mean().weigh(tokens * RHO)),
        gate(clip_gate(tokens), trajectory, objective=token_mean().keep(tokens > RHO)),
        gate(clip_gate(tokens), trajectory, objective=token_mean().weigh(mean(tokens * RHO, over=batch))),
        gate(Gate(where(mean(tokens * advantage, over=trajectory) > 0, residual, tokens)), trajectory),
        gate(
            Gate(residual),
            decomposition=decomposition(density=tokens * token_log_ratio, recovery=exp(gated("") / tokens)),
        ),
    ):
        assert home(h, tokens) == "batch"
    assert home(gate(clip_gate(tokens), trajectory), tokens) == "trajectory"
    assert home(weighed(per_row * RHO), per_row) == "trajectory"


def test_a_pull_over_several_advantages_is_a_statistic():
    h = gate(Gate(residual).inward(), prompt_group, objective=token_mean().weigh(RHO).keep(RHO > 1))
    (statistic,) = (a for a in atoms(h.gate(prompt_group)) if isinstance(a, Aggregate))
    assert (statistic.kind, statistic.over) == ("total", prompt_group)
    assert all(word in str(statistic) for word in ("> 1", "log_prob(rollout))*", "advantage", "exp(token_log_ratio)"))
    assert pull not in set(atoms(h.gate(prompt_group)))
    low = gate(Gate(residual).inward())
    assert not any(isinstance(a, Aggregate) for a in atoms(low.gate(token)))


def test_a_pull_counts_kept_tokens_or_is_refused():
    """With several leaves, the tokens of one leaf are no statistic of all tokens."""
    text, image = strata("text_token image_token")
    fibrations = [Fibration(s, trajectory, uniform()) for s in (text, image)]

    def made(objective, top):
        gates = {trajectory: top, text: identity_gate(), image: identity_gate(), prompt_group: clip_gate(0.1).inward()}
        return Hierarchy(
            name="leaves", fibrations=[*fibrations, Fibration(trajectory, prompt_group, uniform())], gates=gates,
            decomposition=log_ratio(), objective=objective.keep(RHO > 1, normaliser="kept"),
        )  # fmt: skip

    assert made(token_mean(), identity_gate())
    alone = Objective(1 / (count(text, over=trajectory) + count(image, over=trajectory)))
    with pytest.raises(SpecError) as caught:
        made(alone, identity_gate())
    assert caught.value.what == (
        "hierarchy 'leaves': the gate on prompt_group reads pull: count(text_token, over=trajectory) of kept "
        "elements is not a statistic of tokens"
    )
    assert caught.value.found.startswith("the objective Objective(1/(")


@pytest.mark.parametrize("where_it_stands", ["gates", "objective", "gives_up"])
def test_formulas_too_long_to_read_back_are_refused(where_it_stands):
    """A short declaration may have long text, because an expression that is used twice is written twice."""
    long = RHO
    for _ in range(8):
        long = minimum(long, long + 1)
    parts = {
        "gates": lambda: gate(Gate(where(long > 0, residual, 0))),
        "objective": lambda: weighed(long),
        "gives_up": lambda: weighed(RHO).replace(gives_up={"agreement": "why " * 300}),
    }
    with pytest.raises(SpecError) as caught:
        parts[where_it_stands]()
    assert "characters when it is written" in caught.value.what
    assert caught.value.required.startswith("at most 1")
