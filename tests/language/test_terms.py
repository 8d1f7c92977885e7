"""Order, statistics of elements, advantages from rewards, penalties, groups: valid and invalid declarations."""

import json
import pickle

import jsonschema
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
    Penalty,
    SpecError,
    advantage,
    after,
    before,
    centred,
    clip_gate,
    constant_normaliser,
    count,
    decomposition,
    deviation,
    exp,
    gated,
    identity_gate,
    largest,
    log,
    log_prob,
    log_ratio,
    maximum,
    mean,
    minimum,
    policies,
    position,
    quantile,
    residual,
    reward,
    sign,
    some,
    standardised,
    stop,
    strata,
    token_log_ratio,
    token_mean,
    total,
    uniform,
    where,
)
from fibration.language.atoms import ROWS
from fibration.language.expressions import as_expression
from fibration.language.fixed import Here, Unbounded, at_infinity
from fibration.language.hierarchy import fingerprint
from fibration.language.pairs import pair
from fibration.language.token_formulas import ORDER, SUMS

turn, prompt_group, domain, batch, image = strata("turn prompt_group domain batch image")
current, old, reference, curent = policies("current old reference curent")
beta, tau = Parameter("beta", default=0.1), Parameter("tau", default=2.0)
gamma, lam = (Parameter(n, default=0.9, upper=1) for n in ("gamma", "lam"))
value = Attribute("value", on=token, positive=False)
x = log_prob(current) - log_prob(reference)
INSIDE = dict(
    fibrations=[Fibration(token, turn, uniform())], gates={token: clip_gate(0.2), turn: identity_gate()}
)  # fmt: skip
TWO = dict(
    fibrations=[Fibration(token, trajectory, uniform(0.5)), Fibration(image, trajectory, uniform(0.5))],
    gates={s: identity_gate() for s in (token, image, trajectory)},
)


def made(**changes):
    """Tokens, turns, trajectories; and prompt groups, on which no gate is."""
    arguments = dict(
        name="mine",
        fibrations=[Fibration(token, turn, uniform()), Fibration(turn, trajectory, uniform())],
        gates={token: clip_gate(0.2), turn: identity_gate(), trajectory: identity_gate()},
        decomposition=log_ratio(),
        objective=token_mean(),
        groups=[prompt_group],
    )
    return Hierarchy(**{**arguments, **changes})


def weighed(formula, **changes):
    return made(objective=token_mean().weigh(formula), **changes)


def penalised(formula, *more, **changes):
    return made(penalties={"kl": Penalty(formula, *more)}, **changes)


DELTA = reward - value
NAMES = "token turn trajectory prompt_group domain batch image current old reference beta tau gamma lam value".split()
REAL = log(1 + total(where(advantage > 0, exp(-mean(token_log_ratio) / tau), 0), of=trajectory))
GOOD = {
    "a prefix": lambda: weighed(exp(before(token_log_ratio, over=trajectory) + token_log_ratio)),
    "a discounted prefix of a turn": lambda: weighed(before(x, over=turn, discount=gamma * lam)),
    "a turn's place": lambda: weighed(1 / (1 + position(over=trajectory, of=turn))),
    "turns before this one": lambda: weighed(exp(before(mean(x), over=trajectory, of=turn))),
    "order in what comes in several rows": lambda: weighed(position(over=domain, of=trajectory) + before(x, over=domain), groups=[domain]),
    "order of all leaves": lambda: made(**TWO, objective=token_mean().keep(position(over=trajectory) < 9)),
    "order in a gate": lambda: made(gates={token: Gate(residual / (1 + position(over=turn))), turn: Gate(residual / (1 + position(over=trajectory, of=turn))), trajectory: identity_gate()}),
    "order in a density": lambda: made(decomposition=decomposition(density=token_log_ratio + stop(before(token_log_ratio, over=trajectory)), recovery=exp(gated("")))),
    "a group's mean": lambda: made(advantages=centred(reward, over=prompt_group)),
    "all others": lambda: made(advantages=standardised(reward, over=prompt_group, leave_one_out=True)),
    "of tokens": lambda: made(advantages=standardised(reward - beta * (log_prob(old) - log_prob(reference)), over=batch, of=token)),
    "by tokens": lambda: made(advantages=reward - mean(reward, over=prompt_group)),
    "a turn's rewards": lambda: made(advantages=centred(reward, over=prompt_group), rows=turn, fibrations=[Fibration(token, turn, uniform())], gates=INSIDE["gates"]),
    "generalised advantages": lambda: made(advantages=DELTA + after(reward + (1 - lam) / lam * value, over=trajectory, discount=gamma * lam)),
    "a mean over groups": lambda: made(objective=Objective(1 / (count(prompt_group, over=batch) * count(token, over=prompt_group)))),
    "k2": lambda: penalised(beta * x**2 / 2),
    "on positives": lambda: penalised(-log_prob(current), token_mean().keep(advantage > quantile(advantage, 0.5, over=batch))),
    "by the sign": lambda: penalised(beta * x**2 * sign(advantage)),
    "a coarse penalty": lambda: penalised(REAL, None, prompt_group),
    "a penalty of a prefix": lambda: penalised(exp(before(x, over=trajectory)) * stop(x) + stop(mean(x, over=turn)) * x),
    "a penalty of the batch": lambda: penalised(mean(x**2), None, batch),
}  # fmt: skip


@pytest.mark.parametrize("which", GOOD)
def test_valid_declarations_round_trip(which):
    h = GOOD[which]()
    assert Hierarchy.model_validate_json(h.model_dump_json()) == h
    words = {n: getattr(fibration, n) for n in fibration.__all__} | {n: globals()[n] for n in NAMES}
    assert eval(repr(h), words) == h


# What is declared, what the error names, what it found, and what it says to do.
WRONG = {
    # order
    "a discount above 1": (lambda: before(x, over=trajectory, discount=1.01), "the discount of before is 1.01", "", "a number from 0 to 1"),
    "a discount below 0": (lambda: after(x, over=trajectory, discount=-0.5), "the discount of after is -0.5", "", "a number from 0 to 1"),
    "a discount without bounds": (lambda: before(x, over=trajectory, discount=beta), "the discount of before is beta", "beta in (0, inf)", "upper=1"),
    "a discount per channel": (lambda: before(x, over=trajectory, discount=Parameter("d", upper=1, per_channel=True)), "the discount of before is d", "d in (0, 1), one per channel", "of one value"),
    "a discount per group": (lambda: before(x, over=trajectory, discount=Parameter("d", upper=1, on=prompt_group)), "the discount of before is d", "d in (0, 1), one per prompt_group", "one number for all"),
    "a discount that is a count": (lambda: before(x, over=trajectory, discount=1 / count(token)), "the discount of before is 1/count(token)", "", "a number from 0 to 1"),
    "order over nothing": (lambda: before(x), f"before({x}) names no over=", "", "over=trajectory"),
    "order of a condition": (lambda: after(x > 0, over=trajectory), "after takes a number, not", "", "where(condition, 1, 0)"),
    "order over a policy": (lambda: before(x, over=current), "before(..., over=) takes a stratum, not current", "", "declare it"),
    "order in a token": (lambda: weighed(before(x, over=token)), "reads before(", "within one token nothing comes before another", "turn, trajectory, prompt_group, batch"),
    "of and over swapped in order": (lambda: weighed(position(over=turn, of=trajectory)), "reads position(over=turn, of=trajectory)", "'turn' lies over 'trajectory'", "the other way round: over=trajectory, of=turn"),
    "order elsewhere": (lambda: weighed(position(over=strata("trajectry")[0])), "reads position(over=trajectry)", "no token lies over a 'trajectry'", "did you mean 'trajectory'?"),
    "order of tokens at a turn": (lambda: weighed(mean(before(x, over=trajectory), over=trajectory, of=turn)), "the statistic mean(before(", "tokens are ordered, and a turn has several", "of=turn"),
    "order of a residual": (lambda: weighed(before(residual, over=trajectory)), "the order before(residual, over=trajectory) reads residual", "gradients flow", "token_log_ratio"),
    "order in a normaliser": (lambda: made(objective=constant_normaliser(position(over=trajectory))), "the objective weighs tokens by position(over=trajectory)", "", ".weigh(...)"),
    # statistics of elements
    "of and over swapped": (lambda: made(advantages=reward - mean(reward, over=trajectory, of=prompt_group)), "reads mean(", "'trajectory' lies over 'prompt_group'", "over=prompt_group, of=trajectory"),
    "of what it is over": (lambda: made(advantages=reward - mean(reward, over=trajectory, of=trajectory)), "reads mean(", "over one 'trajectory' it is that trajectory's own", "prompt_group, batch"),
    "a forgotten group": (lambda: made(advantages=centred(reward, over=prompt_group), groups=[]), "the formula of advantages reads mean(reward, over=prompt_group, of=trajectory)", "no 'trajectory' lies over a 'prompt_group'", "groups=[prompt_group]"),
    "a misspelt group": (lambda: made(advantages=centred(reward, over=strata("promt_group")[0])), "reads mean(", "no 'trajectory' lies over a 'promt_group'", "did you mean 'prompt_group'?"),
    "of nothing known": (lambda: weighed(mean(advantage, over=batch, of=strata("trajectry")[0])), "reads mean(", "no stratum 'trajectry'", "did you mean 'trajectory'?"),
    "centred over nothing": (lambda: made(advantages=centred(reward)), "reads mean(reward, of=trajectory)", "own", "over= one of prompt_group, batch"),
    "centred in a weight": (lambda: weighed(maximum(centred(advantage, over=prompt_group), 0)), "reads mean(advantage, over=prompt_group, of=rows)", "'rows' stands for the rows only in advantages= and penalties=", "of=trajectory"),
    "the rows in a gate": (lambda: made(gates={token: Gate(residual * mean(advantage, over=batch, of=ROWS)), turn: identity_gate(), trajectory: identity_gate()}), "the gate on token reads mean(advantage, over=batch, of=rows)", "stands for the rows", "of=trajectory"),
    "a token's of rows": (lambda: weighed(mean(x, over=batch, of=trajectory)), "the statistic mean(", "a trajectory has several", "mean(log_prob(current), over=trajectory)"),
    "a turn's attribute of rows": (lambda: weighed(mean(Attribute("a", on=turn), over=batch, of=trajectory)), "reads a", "a trajectory has several turn", "name one of trajectory, prompt_group, batch"),
    "advantages of what has no rows": (lambda: weighed(mean(advantage, over=batch, of=turn), **INSIDE), "reads advantage", "a turn has several", "mean(advantage, over=turn)"),
    "all others of a turn at a row": (lambda: penalised(mean(x) + mean(count(token), over=batch, of=turn, others=True), None, trajectory), "reads mean(count(token), over=batch, of=turn, others=True)", "no trajectory lies over a 'turn'", "trajectory, prompt_group, batch"),
    "others of nothing": (lambda: mean(reward, over=prompt_group, others=True), "mean(reward, others=True) names no of=", "", "of=token"),
    "others that are no truth": (lambda: mean(reward, over=prompt_group, others=1), "mean(..., others=1)", "", "True or False"),
    "leave_one_out that is no truth": (lambda: centred(reward, over=prompt_group, leave_one_out="yes"), "centred(..., leave_one_out='yes')", "", "True or False"),
    "a deviation of a condition": (lambda: deviation(reward > 0, over=prompt_group), "deviation takes a number", "", "where(condition, 1, 0)"),
    # rewards and advantages
    "a reward in a weight": (lambda: weighed(reward), "the weight reward reads reward", "rewards are for advantages= alone", "read advantage"),
    "a reward in a gate": (lambda: made(gates={token: Gate(where(reward > 0, residual, 0)), turn: identity_gate(), trajectory: identity_gate()}), "the gate on token reads reward", "rewards are for advantages= alone", "calls make advantages of them read advantage, which gates"),
    "a reward in a statistic in a gate": (lambda: made(gates={token: Gate(residual * mean(reward, over=batch)), turn: identity_gate(), trajectory: identity_gate()}), "the statistic mean(reward, over=batch) reads reward", "rewards are for advantages= alone", "read advantage"),
    "a reward in a penalty": (lambda: penalised(reward * x), "the penalty 'kl' reads reward", "rewards are for advantages= alone", "read advantage"),
    "a reward in a decomposition": (lambda: made(decomposition=decomposition(density=reward * token_log_ratio, recovery=gated(""))), "density '' of the decomposition reads reward", "rewards are", "read advantage"),
    "an advantage of advantages": (lambda: made(advantages=advantage - mean(advantage, over=prompt_group)), "the formula of advantages reads advantage", "this is what advantages are made of", "read reward"),
    "the KL to the current policy in advantages": (lambda: made(advantages=reward - beta * x), "reads log_prob(current)", "advantages are detached", "log_prob(old)"),
    "a ratio in a baseline": (lambda: made(advantages=reward - mean(token_log_ratio, over=prompt_group)), "the statistic mean(token_log_ratio, over=prompt_group) reads token_log_ratio", "advantages are detached", "log_prob(old)"),
    "a residual in advantages": (lambda: made(advantages=reward * residual), "reads residual", "gradients flow", "token_log_ratio"),
    "advantages that are a condition": (lambda: made(advantages=reward > 0), "advantages cannot be the condition reward > 0", "", "where(condition, 1, 0)"),
    "advantages that are a word": (lambda: made(advantages="reward"), "the advantages", "", "leave the quotes out"),
    "stopped rewards": (lambda: made(advantages=stop(reward)), "the formula of advantages says stop(reward)", "no gradient flows through", "write reward"),
    # penalties
    "a penalty that reads A": (lambda: penalised(advantage * x), "the penalty 'kl' reads advantage as a number", "", "where(advantage > 0, x, 0)"),
    "a penalty of what reads A": (lambda: penalised(x * mean(maximum(advantage, 0), over=batch)), "the penalty 'kl' reads advantage as a number", "", "into the objective"),
    "a penalty weighed by A": (lambda: penalised(x, token_mean().weigh(advantage)), "the penalty 'kl' reads advantage as a number, in advantage", "", "into the objective"),
    "a penalty without a gradient": (lambda: penalised(beta * (log_prob(old) - log_prob(reference))), "no gradient flows through the penalty 'kl'", "nothing of the current policy", "read log_prob(current)"),
    "a misspelt policy": (lambda: penalised(beta * (log_prob(curent) - log_prob(reference)) ** 2), "no gradient flows through the penalty 'kl'", "nothing of the current policy", "did you mean 'current'?"),
    "a penalty of what is held": (lambda: penalised(largest(x, over=trajectory)), "no gradient flows through the penalty 'kl'", "largest, some, quantile", "log_prob(current)"),
    "a penalty that is stopped": (lambda: penalised(stop(x)), "no gradient flows through the penalty 'kl'", "stop pass", "log_prob(current)"),
    "a penalty of a condition": (lambda: penalised(where(some(x > 1, over=turn), 1, 0)), "no gradient flows through the penalty 'kl'", "conditions", "log_prob(current)"),
    "stop of what is frozen in a penalty": (lambda: penalised(x * stop(log_prob(old))), "the penalty 'kl' says stop(log_prob(old))", "no gradient to stop", "write log_prob(old)"),
    "stop in what is held in a penalty": (lambda: penalised(x * deviation(stop(x), over=turn)), "the statistic deviation(", "no gradient flows through", f"write {x}"),
    "stop in a condition of a penalty": (lambda: penalised(where(stop(x) > 0, x, 0)), "the penalty 'kl' says stop(", "no gradient flows through", f"write {x}"),
    "a token's in a coarse penalty": (lambda: penalised(x**2, None, trajectory), "the penalty 'kl' reads log_prob(current)", "it is a token's, and a trajectory has several", "mean(log_prob(current), over=trajectory)"),
    "a row's in a penalty of groups": (lambda: penalised(where(advantage > 0, mean(x), 0), None, prompt_group), "the penalty 'kl' reads advantage", "a prompt_group has several", "mean(advantage, over=prompt_group)"),
    "a penalty over no stratum": (lambda: penalised(mean(x), None, domain), "the penalty 'kl' is read over domain", "no stratum 'domain'", "groups=[domain]"),
    "a penalty over tokens": (lambda: penalised(x, None, token), "the penalty 'kl' is read over token", "", "Penalty(formula, token_mean())"),
    "a penalty with weights over turns": (lambda: penalised(mean(x), token_mean(), turn), "is read over turn, and weighed by token_mean()", "", "an objective for tokens, or over="),
    "a score of a penalty": (lambda: penalised(x, token_mean().score()), "weighed by token_mean().score()", "", "its own gradient"),
    "a penalty's own weights": (lambda: penalised(x, constant_normaliser(advantage)), "the objective of the penalty 'kl' weighs tokens by advantage", "", "parameters of one value"),
    "a residual in a penalty": (lambda: penalised(residual), "the penalty 'kl' reads residual", "gradients flow", "token_log_ratio"),
    "a penalty that is a condition": (lambda: penalised(x > 0), "a penalty cannot be the condition", "", "where(condition, 1, 0)"),
    "a penalty called like a stratum": (lambda: made(penalties={"turn": x}), "uses the name 'turn' for two things", "", "one meaning"),
    "a penalty called like its weight": (lambda: made(penalties={"beta": beta * x}), "uses the name 'beta' for two things", "", "one meaning"),
    "a penalty called mean": (lambda: made(penalties={"mean": x}), "a penalty cannot be called 'mean'", "", "no word of the language"),
    "a policy called like metrics of penalties": (lambda: policies("penalty"), "a policy cannot be called 'penalty'", "", "no word of the language"),
    "a stratum called like what an index takes": (lambda: strata("positions"), "a stratum cannot be called 'positions'", "", "no argument of op.index(...)"),
    "penalties without names": (lambda: made(penalties=[x]), "the collection of penalties is [", "", "penalties={'kl':"),
    "a penalty without a name": (lambda: made(penalties=x), "the collection of penalties is log_prob(current)", "", "penalties={'kl':"),
    # groups
    "the rows as a group": (lambda: made(groups=[trajectory]), "has the group trajectory", "trajectory is the stratum of the rows", "leave it out"),
    "a gated group": (lambda: made(groups=[turn]), "has the group turn", "turn is a stratum of the hierarchy", "leave it out"),
    "the batch as a group": (lambda: made(groups=[batch]), "has the group batch", "batch is always there", "leave it out"),
    "a group twice": (lambda: made(groups=[prompt_group, prompt_group]), "has the group prompt_group", "named twice", "leave it out"),
    "a group that is a name": (lambda: made(groups=["prompt_group"]), "the group is 'prompt_group'", "", "groups=[prompt_group]"),
    "a group called like a parameter": (lambda: weighed(tau * mean(count(token), over=strata("tau")[0]), groups=strata("tau")), "uses the name 'tau' for two things", "", "one meaning"),
}  # fmt: skip


@pytest.mark.parametrize("which", WRONG)
def test_a_wrong_declaration_gets_the_rule_and_a_fix(which):
    refuses_a_spec(*WRONG[which])


# ---------------------------------------------------------------- as JSON

ALL = made(
    advantages=standardised(reward, over=prompt_group, leave_one_out=True) - beta * position(over=trajectory),
    penalties={"kl": beta * x**2 / 2, "good": Penalty(-log_prob(current), token_mean().keep(advantage > 0)), "pairs": Penalty(REAL, over=prompt_group)},
)  # fmt: skip
DOCUMENT = json.loads(ALL.model_dump_json())
# What is written over the document, what the error says, what it asks for, and what to do.
BROKEN = {
    "a misspelt field": ({"kl": {"formla": "token_log_ratio"}}, "'penalties.kl'", 'a text of at most 10000 characters, {"formula": text', "did you mean 'formula'?"),
    "a number": ({"kl": 3}, "'penalties.kl'", 'a text of at most 10000 characters, {"formula": text', ""),
    "no formula": ({"kl": {"objective": "token_mean()"}}, "'penalties.kl'", 'a text of at most 10000 characters, {"formula": text', ""),
    "a number as weights": ({"kl": {"formula": "token_log_ratio", "objective": 3}}, "'penalties.kl'", 'a text of at most 10000 characters, {"formula": text', ""),
    "misspelt weights": ({"kl": {"formula": "token_log_ratio", "objective": "token_meen()"}}, "the penalty 'kl': objective: 'token_meen()' is no objective", "a call of", "did you mean 'token_mean'?"),
    "an unknown stratum": ({"kl": {"formula": "token_log_ratio", "over": "turns"}}, "the penalty 'kl' names the stratum 'turns'", "one of token, turn", ""),
    "a space in a name": ({"my kl": "token_log_ratio"}, "'penalties.my kl.[key]'", "a letter, then letters", ""),
    "a list": (["token_log_ratio"], "'penalties'", "an object", ""),
    "an unknown word": ({"kl": "beta * kl"}, "the penalty 'kl': the name 'kl' means nothing here", "one of advantage, beta", ""),
    "a condition": ({"kl": "token_log_ratio > 0"}, "the penalty 'kl': a penalty cannot be the condition", "a number", "where(condition, 1, 0)"),
    "a group that is none": ("groups", ["prompt_grup"], "'groups' names the stratum 'prompt_grup'", "one of token, turn", ""),
    "groups as a text": ("groups", "prompt_group", "'groups'", "a list", ""),
    "advantages as a number": ("advantages", 3, "'advantages'", "a text", ""),
    "a misspelt group": ("advantages", "centred(reward, over=promt_group)", "the advantages: no stratum 'promt_group'", "one of token, turn", "did you mean 'prompt_group'?"),
    "the rows by their word": ("advantages", "centred(reward, over=prompt_group, of=rows)", "the advantages: no stratum 'rows'", "one of token, turn", ""),
    "no truth": ("advantages", "mean(reward, over=prompt_group, of=trajectory, others=1)", "the advantages: mean(..., others=1)", "True or False", ""),
    "nothing centred": ("advantages", "centred()", "the advantages: wrong arguments to 'centred'", "centred(formula, over, leave_one_out, of)", ""),
    "a quantile of rows": ("advantages", "quantile(reward, 0.5, over=prompt_group, of=trajectory)", "wrong arguments to 'quantile'", "quantile(formula, level, over)", ""),
    "a discount": ("advantages", "after(reward, over=trajectory, discount=2)", "the advantages: the discount of after is 2", "a number from 0 to 1", ""),
    "a power that is huge": ("advantages", "reward**99999999", "the advantages: cannot raise reward to the power 99999999", "from 1 to 16", ""),
    "a place in nothing": ("advantages", "reward * position()", "the advantages: before(1) names no over=", "over=trajectory", ""),
}  # fmt: skip


def test_json_keeps_every_part_of_a_declaration():
    assert Hierarchy.model_validate(DOCUMENT) == ALL
    jsonschema.validate(DOCUMENT, Hierarchy.model_json_schema())
    assert pickle.loads(pickle.dumps(ALL)) == ALL
    kl, good, pairs = ALL.penalties.values()
    other = [made(**{**dict(penalties=dict(ALL.penalties), advantages=ALL.advantages), **c}) for c in (
        dict(penalties={"kl": kl, "good": good}), dict(penalties={"kl": kl, "good": kl, "pairs": pairs}), dict(advantages=None),
        dict(penalties={"kl": Penalty(kl.formula, token_mean()), "good": good, "pairs": pairs}), dict(groups=[prompt_group, domain]),
        dict(advantages=standardised(reward, over=prompt_group, leave_one_out=True) - beta * position(over=turn)),
        dict(advantages=standardised(reward, over=prompt_group) - beta * position(over=trajectory)),
    )]  # fmt: skip
    assert len({fingerprint(h) for h in (*other, ALL)}) == len(other) + 1
    assert all(h != ALL for h in other)


@pytest.mark.parametrize("which", BROKEN)
def test_wrong_documents_are_described_by_the_users_names(which):
    key, value, what, required, remedy = BROKEN[which] if len(BROKEN[which]) == 5 else ("penalties", *BROKEN[which])
    with pytest.raises(SpecError) as caught:
        Hierarchy.model_validate({**DOCUMENT, key: value})
    error = caught.value
    assert what in error.what
    assert error.required.startswith(required) or required in error.required
    assert remedy in error.remedy
    assert not any(word in str(error) for word in ("pydantic", "Document", "constrained", "and then"))


@pytest.mark.parametrize("text", ["print(1)", "__import__('os').system('x')", "count.__globals__", "nothing", "C C", "", "\x00"])
def test_invalid_text_is_refused_and_not_run_wherever_it_stands(text, capsys):
    gates, kernel = DOCUMENT["gates"], {"source": "token", "target": "turn", "kernel": text}
    for changes in (
        {"gates": {**gates, "token": text}}, {"gates": {**gates, "token": {"+": text, "-": text}}}, {"decomposition": text},
        {"fibrations": [kernel, *DOCUMENT["fibrations"][1:]]}, {"objective": text}, {"objective": f"token_mean().weigh({text}))"},
        {"objective": f'token_mean().keep(advantage > 0, normaliser="{text}")'}, {"objective": f"token_mean().{text}(1)"},
        {"policies": ["reference", text]}, {"groups": ["prompt_group", text]}, {"advantages": text},
        {"advantages": f"centred(reward, over={text})"}, {"advantages": f"after(reward, over=trajectory, discount={text})"},
        {"penalties": {text: "token_log_ratio"}}, {"penalties": {"kl": text}},
        {"penalties": {"kl": {"formula": "token_log_ratio", "objective": text}}},
        {"penalties": {"kl": {"formula": "mean(token_log_ratio)", "over": text}}},
    ):  # fmt: skip
        with pytest.raises(FibrationError):
            Hierarchy.model_validate(DOCUMENT | changes)
    assert capsys.readouterr() == ("", "")


def test_a_declaration_too_long_to_read_back_is_refused():
    long = mean(reward, over=prompt_group, of=trajectory)
    for _ in range(8):
        long = maximum(long, long + 1)
    moving = where(advantage > 0, x, 0)
    for _ in range(8):
        moving = moving + moving
    for changes, what in (
        (dict(advantages=long), "the formula of advantages"),
        (dict(penalties={"kl": moving}), "the penalty 'kl'"),
        (dict(penalties={"kl": Penalty(x, token_mean().keep(moving > 0))}), "the objective of the penalty 'kl'"),
    ):
        with pytest.raises(SpecError, match=f"{what} has [0-9]+ characters when it is written"):
            made(**changes)


# ---------------------------------------------------------------- what others ask of it


def test_parameters_are_replaced_wherever_they_stand():
    """Places: weights and formulas of penalties, advantages, statistics, discounts."""
    delta = Parameter("delta", default=0.5, upper=1)
    h = made(
        advantages=reward - mean(reward / beta, over=prompt_group, of=trajectory),
        penalties={
            "kl": x * before(beta * x, over=trajectory, discount=delta),
            "good": Penalty(x, token_mean().weigh(exp(beta)).keep(advantage > beta)),
        },
    )
    put, _ = pair(h, h, parameters={"beta": 2, "delta": 0.25})
    assert not put.parameters
    assert put.advantages == reward - mean(reward / 2, over=prompt_group, of=trajectory)
    assert put.penalties["kl"].formula == x * before(2 * x, over=trajectory, discount=0.25)
    assert put.penalties["good"] == Penalty(x, Objective(token_mean().weight).weigh(exp(2)).keep(advantage > 2))
    assert put.groups == h.groups


def test_infinite_parameters_keep_stops_through_which_a_gradient_would_flow():
    """A `stop` stays if gradients flow through its operand. Elsewhere it would stop nothing, so it is dropped."""
    bound = Parameter("bound")
    moved, first, here = mean(x, over=turn), before(x, over=turn), Here(penalised(x).shape)
    for formula, limit, through in (
        (stop(minimum(moved, bound)) * x, stop(moved) * x, SUMS),
        (stop(minimum(first, bound)) * x, stop(first) * x, SUMS),
        (stop(minimum(first, bound)) * x, stop(first) * x, ORDER),
        (stop(minimum(moved, bound)) * x, moved * x, ORDER),
        (stop(minimum(log_prob(old), bound)) * x, log_prob(old) * x, SUMS),
        (x / (bound * mean(exp(x), over=turn)), as_expression(0), SUMS),
        (where(bound * largest(exp(x), over=turn) > 1, x, 0), x, SUMS),
    ):
        assert at_infinity(formula, {bound: 1}, here, through) == limit
    for formula in (
        x / bound + mean(x, over=turn) * bound,
        bound * deviation(x, over=turn),
        bound * position(over=turn),
    ):
        with pytest.raises(Unbounded):
            at_infinity(formula, {bound: 1}, here, SUMS)
    capped = penalised(x * stop(minimum(moved, bound)))
    put, _ = pair(capped, capped, parameters={"bound": float("inf")})
    assert put.penalties["kl"].formula == x * stop(moved)
    with pytest.raises(SpecError, match=r"hierarchy 'mine': .*infinite"):
        pair(capped, penalised(bound * x), parameters={"bound": float("inf")})
