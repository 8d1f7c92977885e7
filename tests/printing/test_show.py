"""`fibration show`: every form of every shipped hierarchy, and of hierarchies made to be awkward."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest
import thorough
from matplotlib.mathtext import MathTextParser
from support import OF_EVERY_KIND
from typer.testing import CliRunner

from fibration import (
    Attribute,
    Fibration,
    Gate,
    Hierarchy,
    MarkovKernel,
    Parameter,
    Penalty,
    Stratum,
    advantage,
    after,
    balanced,
    before,
    clip,
    clip_gate,
    count,
    decomposition,
    density,
    exp,
    expm1,
    gated,
    identity_gate,
    largest,
    load,
    log1p,
    log_prob,
    log_ratio,
    mass,
    mean,
    minimum,
    policies,
    populated,
    position,
    proportional,
    quantile,
    residual,
    reward,
    sigmoid,
    sign,
    signed_log_ratio,
    some,
    sqrt,
    standardised,
    strata,
    tanh,
    token_log_ratio,
    token_mean,
    total,
    trajectory_mean,
    uniform,
    where,
)
from fibration.cli.main import app
from fibration.language.expressions import Expression
from fibration.printing.latex import latex, tex
from fibration.printing.layout import folded, wrapped
from fibration.printing.text import mermaid, text, unit

token, image, turn, end = strata("token image turn end_of_all")
weight = Attribute("weight", on=token)
tau = Parameter("tau_high", default=1.5, per_channel=True)

# Every operator, names with underscores, words of mermaid and TeX.
AWKWARD = Hierarchy(
    name="awkward",
    fibrations=[
        Fibration(token, turn, kernel=MarkovKernel(weight / total(weight, over=turn))),
        Fibration(turn, end, kernel=proportional(count(token))),
    ],
    gates={
        token: Gate(
            where(
                (advantage > 0) & ~(residual < 1) | (density(end, "+") <= 2),
                sigmoid(tau * residual),
                -sqrt(exp(residual)),
            )
            * 3
            - (1 + residual) * -2
            + minimum(expm1(residual), log1p(-tau)) ** 2
        ),
        turn: Gate(clip(abs(residual), 0, 1) * sign(residual)).per(count(token)),
        end: identity_gate(),
    },
    decomposition=signed_log_ratio(),
    objective=token_mean(),
    rows=turn,
)
TREE = Hierarchy(
    name="tree",
    fibrations=[
        Fibration(token, turn, kernel=uniform()),
        Fibration(image, turn, kernel=uniform()),
        Fibration(turn, end, kernel=uniform()),
    ],
    gates={s: identity_gate() for s in (token, image, turn, end)},
    decomposition=signed_log_ratio(),
    objective=token_mean(),
    rows=turn,
)
CYCLE = Hierarchy(
    name="cycle",
    fibrations=[Fibration(token, turn, kernel=uniform()), Fibration(turn, token, kernel=uniform())],
    gates={token: clip_gate(1), turn: identity_gate()},
    decomposition=signed_log_ratio(),
    objective=token_mean(),
)
text_token, image_token, trajectory, domain, modality, batch = strata(
    "text_token image_token trajectory domain modality batch"
)
T = count(text_token, over=trajectory) + count(image_token, over=trajectory)
# Two leaves, a crossing, and everything that may be assumed.
QUIVER = Hierarchy(
    name="quiver",
    fibrations=[
        Fibration(text_token, trajectory, kernel=MarkovKernel(1 / T)),
        Fibration(image_token, trajectory, kernel=MarkovKernel(1 / T)),
        Fibration(trajectory, domain, kernel=uniform()),
        Fibration(trajectory, modality, kernel=uniform()),
        Fibration(domain, batch, kernel=proportional(count(trajectory))),
        Fibration(modality, batch, kernel=proportional(count(trajectory))),
    ],
    gates={s: clip_gate(1).per(mass) for s in (text_token, image_token, trajectory, domain, modality, batch)},
    decomposition=signed_log_ratio(scale=mass),
    objective=trajectory_mean().score(),
    assume=[balanced(domain, modality), populated(image_token, over=trajectory)],
)
old, rollout_engine = policies("old rollout_engine")
RHO = exp(log_prob(old) - log_prob(rollout_engine))
# Everything that is read of single tokens, and gates that know signs.
WEIGHED = Hierarchy(
    name="weighed",
    fibrations=[Fibration(token, turn, kernel=uniform()), Fibration(turn, end, kernel=proportional(count(token)))],
    gates={
        end: Gate(tanh(residual)).inward(),
        turn: clip_gate(1 + largest(abs(token_log_ratio), over=end)),
        token: {"+": clip_gate(tau), "-": clip_gate(0.5).per(2).inward(ceiling=1)},
    },
    decomposition=signed_log_ratio(),
    objective=token_mean()
    .weigh(minimum(RHO, 2))
    .weigh(advantage**2)
    .keep(~some(RHO > 5, over=turn), normaliser="kept")
    .keep(quantile(log_prob(old), 0.25, over=Stratum("batch")) < mean(log_prob(old), over=turn)),
    rows=turn,
)
prompt_group = Stratum("prompt_group")
current, reference = policies("current reference")
gamma, beta_kl = Parameter("gamma", default=0.9, upper=1), Parameter("beta_kl", default=0.1)
KL = log_prob(current) - log_prob(reference)
# Order, rewards, penalties of every kind, groups.
TERMS = WEIGHED.replace(
    name="terms",
    gates={**WEIGHED.gates, token: clip_gate(1 + position(over=end, of=turn))},
    objective=token_mean().keep(position(over=turn) < 9).keep(before(token_log_ratio, over=turn, discount=gamma) < 1, "kept"),
    groups=[prompt_group],
    advantages=standardised(reward, over=prompt_group, leave_one_out=True) + after(reward, over=turn),
    penalties={
        "kl_mean": beta_kl * KL**2 / 2,
        "good": Penalty(-log_prob(current), token_mean().weigh(RHO).keep(advantage > 0, normaliser="kept")),
        "pairs": Penalty(total(exp(-mean(KL)), of=turn), over=prompt_group),
    },
)  # fmt: skip
ALL = [
    *map(load, OF_EVERY_KIND),
    WEIGHED,
    TERMS,
    AWKWARD,
    TREE,
    CYCLE,
    QUIVER,
    QUIVER.replace(orthogonalise="projection"),
]


def rows_of(hierarchy: Hierarchy) -> list[str]:
    """The rows of its LaTeX, without the environment and the comment."""
    return latex(hierarchy).split("\n", 2)[2].rsplit("\n", 1)[0].split(" \\\\\n")


def without_cases(row: str) -> str:
    """Environments of cases as lists in braces, the innermost first."""
    while found := re.search(r"\\begin\{cases\}((?:(?!\\begin).)*?)\\end\{cases\}", row):
        inside = found.group(1).replace(r" \\ ", " ; ").replace("&", ",")
        row = rf"{row[: found.start()]}\{{{inside}\}}{row[found.end() :]}"
    return row


@pytest.mark.parametrize("hierarchy", ALL, ids=lambda h: h.name)
def test_latex_is_balanced_and_escaped(hierarchy: Hierarchy) -> None:
    written = latex(hierarchy)
    depth = 0
    for character in re.sub(r"\\.", "", written):
        depth += {"{": 1, "}": -1}.get(character, 0)
        assert depth >= 0
    assert depth == 0
    assert written.count(r"\left") == written.count(r"\right")
    assert re.findall(r"\\begin\{(.*?)\}", written).count("cases") == written.count(r"\end{cases}")
    # `_` is either escaped in a name or a subscript, which always has braces
    assert not re.search(r"(?<!\\)_(?![{i])", written.replace(f"% {hierarchy.name}\n", ""))
    assert written.startswith("\\begin{align*}\n") and written.endswith("\n\\end{align*}")
    assert "\n\n" not in written  # an empty line ends the environment
    for row in rows_of(hierarchy):
        assert len(re.findall(r"(?<!\\)&", without_cases(row))) == 1


@pytest.mark.sampled
@pytest.mark.parametrize("hierarchy", thorough.some(ALL, 2), ids=lambda h: h.name)
def test_every_latex_row_parses_as_mathematics(hierarchy: Hierarchy) -> None:
    """Every row parses as what matplotlib knows of TeX, which has neither environments nor some of the names."""
    names = {r"\lvert": "|", r"\rvert": "|", r"\land": r"\wedge", r"\lor": r"\vee", r"\lnot": r"\neg"}
    names |= {r"\le": r"\leq", r"\ge": r"\geq"}
    for row in rows_of(hierarchy):
        plain = re.sub(r"\\[A-Za-z]+", lambda m: names.get(m.group(), m.group()), without_cases(row))
        MathTextParser("agg").parse(f"${plain.replace('&', '')}$")


@pytest.mark.parametrize(
    ("expression", "written"),
    [
        ((residual + 1) * 2, r"\left(\rho + 1\right) \cdot 2"),
        (residual - (advantage - 1), r"\rho - \left(A - 1\right)"),
        (residual + -advantage, r"\rho + \left(-A\right)"),
        (1 / count(token, over=turn), r"\frac{1}{\lvert \mathrm{token}(\mathrm{turn}) \rvert}"),
        (abs(residual) ** 2, r"\left\lvert \rho \right\rvert^{2}"),
        ((-residual) ** 2, r"\left(-\rho\right)^{2}"),
        (log1p(-tau), r"\log\left(1 - \tau_{\mathrm{high}}^{\pm}\right)"),
        (Parameter("C_end_of_all"), r"C_{\mathrm{end\_of\_all}}"),
        (total(weight, over=end), r"\Sigma_{\mathrm{weight}}(\mathrm{end\_of\_all})"),
        (
            where(residual <= 1, 2, 3) * 4,
            r"\left(\begin{cases} 2 & \text{if } \rho \le 1 \\ 3 & \text{otherwise} \end{cases}\right) \cdot 4",
        ),
    ],
    ids=str,
)
def test_expressions_in_latex(expression: object, written: str) -> None:
    assert tex(expression) == written  # type: ignore[arg-type]


def test_a_scaled_gate_is_written_with_its_scale_once() -> None:
    written = latex(load("fiberpo_domain"))
    assert r"\lvert \mathrm{trajectory}(\mathrm{domain}) \rvert \cdot \begin{cases} s & \text{if }" in written
    assert r"\text{with } s = \frac{\rho}{\lvert \mathrm{trajectory}(\mathrm{domain}) \rvert}" in written


def test_the_mass_is_written_out_once() -> None:
    rows = rows_of(QUIVER)
    assert rows[-4:-2] == [
        r"g_{\mathrm{image\_token}}(\rho) &= m \cdot \operatorname{clip}\left(s, -1, 1\right)",
        r"&\qquad\text{with } s = \frac{\rho}{m}",
    ]
    assert r"m(\mathrm{batch}) &= 1" in rows
    assert (
        r"m(\mathrm{domain}) &= \frac{\lvert \mathrm{trajectory}(\mathrm{domain}) \rvert}"
        r"{\lvert \mathrm{trajectory}(\mathrm{batch}) \rvert}"
    ) in rows
    masses = [row for row in rows if row.startswith("m(") and "is assumed" not in row]
    assert len(masses) == len(QUIVER.strata)
    assert not any(row.startswith("m(") for row in rows_of(load("gspo")))


def test_latex_of_a_quiver_has_its_kernels_and_residuals() -> None:
    rows = rows_of(QUIVER)
    assert rows[0] == (
        r"&\mathrm{text\_token} \to \mathrm{trajectory} \to \mathrm{domain} \to \mathrm{batch},\quad "
        r"\mathrm{image\_token} \to \mathrm{trajectory} \to \mathrm{modality} \to \mathrm{batch}"
    )
    together = [row for row in rows if row.startswith(r"\sum")]
    assert together == [
        r"\sum_{\mathrm{text\_token}} K(\mathrm{text\_token} \mid \mathrm{trajectory}) + "
        r"\sum_{\mathrm{image\_token}} K(\mathrm{image\_token} \mid \mathrm{trajectory}) &= 1"
    ]
    assert (
        r"m(\mathrm{domain} \cap \mathrm{modality})\, m(\mathrm{batch}) &= m(\mathrm{domain})\, m(\mathrm{modality}) "
        r"\quad\text{is assumed}"
    ) in rows
    assert r"\lvert \mathrm{image\_token}(\mathrm{trajectory}) \rvert &\ge 1 \quad\text{is assumed}" in rows
    assert (
        r"\rho_{\mathrm{trajectory}} &= \sigma_{\mathrm{trajectory}} - K \sigma_{\mathrm{domain}} "
        r"- K \sigma_{\mathrm{modality}} + K \sigma_{\mathrm{batch}}"
    ) in rows
    projected = [row for row in rows_of(QUIVER.replace(orthogonalise="projection")) if "least squares" in row]
    assert [re.findall(r"\\rho_\{\\mathrm\{(\w+)\}\}", row) for row in projected] == [["batch", "domain", "modality"]]


def test_objectives_count_the_tokens_of_every_leaf() -> None:
    both = "count(text_token, over=trajectory) + count(image_token, over=trajectory)"
    assert f"  μ_i = 1/(count(trajectory, over=batch)*({both}))\n" in text(QUIVER)
    assert rows_of(QUIVER)[-1] == (
        r"J &= \sum_i \mu_i\, \operatorname{stop}\left(\mathcal{G}(r)_i\right)\, A_i\, \log \pi_i,\qquad "
        r"\mu_i = \frac{1}{\lvert \mathrm{trajectory}(\mathrm{batch}) \rvert\, "
        r"\left(\lvert \mathrm{text\_token}(\mathrm{trajectory}) \rvert + "
        r"\lvert \mathrm{image\_token}(\mathrm{trajectory}) \rvert\right)}"
    )
    tokens = (text_token, image_token)
    assert str(token_mean().spelled_out(tokens, trajectory)) == (
        "1/(count(text_token, over=batch) + count(image_token, over=batch))"
    )


def test_latex_of_both_estimators_differs() -> None:
    assert "  J = Σ_i μ_i·stop(𝒢(r)_i)·A_i·log π_i\n" in text(load("cispo"))
    assert "  J = Σ_i μ_i·𝒢(r)_i·A_i\n" in text(load("ppo"))
    assert "stop" not in latex(load("ppo"))


def test_weights_and_conditions_of_tokens_are_shown() -> None:
    shown = text(WEIGHED)
    assert (
        "  J = Σ_i μ_i·w_i·𝒢(r)_i·A_i\n"
        "  μ_i = 1/count(token, over=batch)\n"
        "  w_i = minimum(exp(log_prob(old) - log_prob(rollout_engine)), 2)*advantage**2\n"
        "  over i with ~some(exp(log_prob(old) - log_prob(rollout_engine)) > 5, over=turn), which alone μ counts\n"
        "  over i with quantile(log_prob(old), 0.25, over=batch) < mean(log_prob(old), over=turn)\n"
    ) in shown
    assert "\npolicies\n  rollout_engine: policies={'rollout_engine': log_probs} in every call" in shown
    assert 'gate    {"+": clip_gate(tau_high), "-": clip_gate(0.5).per(2).inward(ceiling=1)}\n' in shown
    assert "\n  on token: channel_sign*advantage\n" in shown
    assert f"\n  on end_of_all: {WEIGHED.pull(end)}\n" in shown
    assert "stop(w_i·𝒢(r)_i)·A_i·log π_i" in text(WEIGHED.replace(objective=WEIGHED.objective.score()))


def test_weights_and_conditions_of_tokens_in_latex() -> None:
    rows = rows_of(WEIGHED)
    assert rows[-4].startswith(r"J &= \sum_i \mu_i\, w_i\, \mathcal{G}(r)_i\, A_i,\qquad \mu_i")
    rho = r"\exp\left(\log \pi_{\mathrm{old}} - \log \pi_{\mathrm{rollout\_engine}}\right)"
    some_turn = rf"\operatorname{{some}}_{{\mathrm{{turn}}}}\left({rho} > 5\right)"
    assert rows[-3:] == [
        rf"w_i &= \min\left({rho}, 2\right)\, A^{{2}}",
        rf"&\qquad\text{{over }} i \text{{ with }} \lnot\left({some_turn}\right)\text{{, which alone }}\mu\text{{ counts}}",
        r"&\qquad\text{over } i \text{ with } \operatorname{quantile}_{\mathrm{batch}}^{0.25}"
        r"\left(\log \pi_{\mathrm{old}}\right) < \operatorname{mean}_{\mathrm{turn}}\left(\log \pi_{\mathrm{old}}\right)",
    ]
    assert (
        r"g_{\mathrm{token}}^{+}(\rho) &= \operatorname{clip}\left(\rho, -\tau_{\mathrm{high}}^{\pm}, \tau_{\mathrm{high}}^{\pm}\right)"
        in rows
    )
    assert r"&\qquad\text{with } \varphi = \varsigma\, A" in rows
    assert any(
        row.startswith(r"&\qquad\text{with } \varphi = \varsigma\, \sum_{\mathrm{end\_of\_all}}\left(") for row in rows
    )
    score = latex(WEIGHED.replace(objective=WEIGHED.objective.score()))
    assert r"\operatorname{stop}\left(w_i\, \mathcal{G}(r)_i\right)\, A_i\, \log \pi_i" in score


def test_order_advantages_and_penalties_are_shown() -> None:
    shown = text(TERMS)
    baseline = "mean(reward, over=prompt_group, of=turn, others=True)"
    assert (
        "terms\n"
        "  J = Σ_i μ_i·𝒢(r)_i·A_i - Σ_i μ_i·kl_mean_i - Σ_i μ[good]_i·w[good]_i·good_i - mean[prompt_group](pairs)\n"
        "  μ_i = 1/count(token, over=batch)\n"
        "  over i with position(over=turn) < 9, but in penalties\n"
        "  over i with before(token_log_ratio, over=turn, discount=gamma) < 1, which alone μ counts\n"
        f"  A_i = (reward - {baseline})/(deviation(reward, over=prompt_group, of=turn) + 1e-06) + after(reward, over=turn), "
        "of rewards=, or advantages= in their place\n"
        "  kl_mean_i = beta_kl*(log_prob(current) - log_prob(reference))**2/2\n"
        "  good_i = -log_prob(current)\n"
        "  μ[good]_i = 1/count(token, over=batch)\n"
        "  w[good]_i = exp(log_prob(old) - log_prob(rollout_engine))\n"
        "  over i of good with advantage > 0, which alone μ[good] counts\n"
        "  pairs = total(exp(-mean(log_prob(current) - log_prob(reference))), of=turn)\n"
        "\ngated ratio\n"
    ) in shown
    assert "\n\ngroups\n  prompt_group: prompt_group=labels, one of every turn, in every index\n" in shown
    assert "gate    clip_gate(1 + position(over=end_of_all, of=turn))\n" in shown


def test_order_advantages_and_penalties_in_latex() -> None:
    rows = rows_of(TERMS)
    assert rows[0].endswith(r",\quad \mathrm{turn} \to \mathrm{prompt\_group}")
    (value,) = (row for row in rows if row.startswith("J"))
    assert value.startswith(
        r"J &= \sum_i \mu_i\, \mathcal{G}(r)_i\, A_i - \sum_i \mu_i\, \mathrm{kl\_mean}_i"
        r" - \sum_i \mu^{\mathrm{good}}_i\, w^{\mathrm{good}}_i\, \mathrm{good}_i"
        r" - \operatorname{mean}_{\mathrm{prompt\_group}}\left(\mathrm{pairs}\right),\qquad"
    )
    of = r"\mathrm{turn} \to \mathrm{prompt\_group}"
    kl = r"\log \pi_{\mathrm{current}} - \log \pi_{\mathrm{reference}}"
    assert rows[rows.index(value) + 1 :] == [
        r"&\qquad\text{over } i \text{ with } \operatorname{position}_{\mathrm{turn}} < 9\text{, but in penalties}",
        r"&\qquad\text{over } i \text{ with } \operatorname{before}_{\mathrm{turn}}^{\gamma}\left(x\right) < 1"
        r"\text{, which alone }\mu\text{ counts}",
        rf"A_i &= \frac{{\mathrm{{reward}} - \operatorname{{mean}}_{{{of}}}^{{\ne}}\left(\mathrm{{reward}}\right)}}"
        rf"{{\operatorname{{deviation}}_{{{of}}}\left(\mathrm{{reward}}\right) + 10^{{-6}}}}"
        r" + \operatorname{after}_{\mathrm{turn}}\left(\mathrm{reward}\right)",
        rf"\mathrm{{kl\_mean}}_i &= \frac{{\beta_{{\mathrm{{kl}}}}\, \left({kl}\right)^{{2}}}}{{2}}",
        r"\mathrm{good}_i &= -\log \pi_{\mathrm{current}}",
        r"&\qquad\text{with } \mu^{\mathrm{good}}_i = \frac{1}{\lvert \mathrm{token}(\mathrm{batch}) \rvert}",
        r"w^{\mathrm{good}}_i &= \exp\left(\log \pi_{\mathrm{old}} - \log \pi_{\mathrm{rollout\_engine}}\right)",
        r"&\qquad\text{over } i \text{ of } \mathrm{good} \text{ with } A > 0"
        r"\text{, which alone }\mu^{\mathrm{good}}\text{ counts}",
        rf"\mathrm{{pairs}} &= \sum_{{\mathrm{{turn}} \to \mathrm{{prompt\_group}}}}"
        rf"\left(\exp\left(-\operatorname{{mean}}_{{\cdot}}\left({kl}\right)\right)\right)",
    ]


def test_groups_are_dotted_in_mermaid() -> None:
    assert mermaid(TERMS).splitlines()[-2:] == ['    g0["<b>prompt_group</b><br/>labels of turn"]', "    s1 -.-> g0"]
    alone = load("ppo").replace(groups=[prompt_group])
    assert mermaid(alone).splitlines()[-1] == "    s0 -.-> g0"


def test_the_unit_of_several_leaves_is_shown() -> None:
    assert unit(load("fiberpo_modal")) == unit(QUIVER) == "nats"
    assert unit(QUIVER.replace(decomposition=log_ratio(scale=1 / count(text_token, over=trajectory)))) == "units of F"


@pytest.mark.parametrize(
    ("formula", "name"),
    [
        (token_log_ratio, "nats"),
        (expm1(token_log_ratio), "r − 1"),
        (exp(token_log_ratio) - 1, "units of F"),
        (2 * token_log_ratio, "units of F"),
    ],
)
def test_units_are_those_of_the_formula(formula: Expression, name: str) -> None:
    assert unit(load("ppo").replace(decomposition=decomposition(density=formula, recovery=gated("")))) == name


def test_mermaid_of_a_chain_is_as_expected() -> None:
    assert mermaid(load("fiberpo")).splitlines() == [
        "---",
        "title: fiberpo",
        "---",
        "flowchart BT",
        '    s0["<b>token</b><br/>clip_gate(epsilon).per(1/count(token, over=trajectory))"]',
        '    s1["<b>trajectory</b><br/>aggregate_gate(C_trajectory, rollback=count(token))"]',
        '    s0 -->|"uniform()"| s1',
    ]


@pytest.mark.parametrize("hierarchy", ALL, ids=lambda h: h.name)
def test_mermaid_labels_hold_nothing_that_ends_them(hierarchy: Hierarchy) -> None:
    lines = mermaid(hierarchy).splitlines()
    assert len(lines) == 4 + len(hierarchy.strata) + len(hierarchy.fibrations) + 2 * len(hierarchy.groups)
    for line in lines[4 : len(lines) - len(hierarchy.groups)]:
        label = line.split('"', 1)[1].rsplit('"', 1)[0].replace("<b>", "").replace("</b>", "").replace("<br/>", "")
        assert not set(label) & set('"<>`')


def test_a_named_gate_is_shown_with_its_formula() -> None:
    lines = text(load("grpo")).partition("gated ratio\n")[2].split("\n\n")[0].splitlines()
    gate = "where(advantage >= 0, minimum(residual, epsilon_high), maximum(residual, -epsilon_low))"
    assert lines[:2] == [
        "  density of a token = expm1(token_log_ratio)",
        f"  pessimistic_clip_gate(epsilon_low, epsilon_high) = {gate}",
    ]
    assert lines[2].startswith('  𝒢(r) = 1 + gated("")')
    assert "clip(" not in text(load("cispo")).partition("gated ratio\n")[2].split("\n\n")[0]  # Gate(f) is its formula


def test_text_shows_the_tree_of_strata() -> None:
    shown = text(TREE)
    assert shown == (
        "tree\n"
        "  J = Σ_i μ_i·𝒢(r)_i·A_i\n"
        "  μ_i = 1/(count(token, over=batch) + count(image, over=batch))\n"
        "\n"
        "gated ratio\n"
        "  density of a token in channel + = where(token_log_ratio >= 0, token_log_ratio, 0)\n"
        "  density of a token in channel - = where(token_log_ratio >= 0, 0, -token_log_ratio)\n"
        "  identity_gate() = residual\n"
        '  𝒢(r) = exp(gated("+") - gated("-")), where gated(...) is what the gates of all levels pass to a token\n'
        "\n"
        "levels\n"
        "  end_of_all\n"
        "  │  gate    identity_gate()\n"
        "  └─ turn\n"
        "     │  kernel  uniform()\n"
        "     │  gate    identity_gate()\n"
        "     │  jointly token and image share one reflecting kernel\n"
        "     ├─ token\n"
        "     │     kernel  uniform()\n"
        "     │     gate    identity_gate()\n"
        "     └─ image\n"
        "           kernel  uniform()\n"
        "           gate    identity_gate()"
    )


def test_text_shows_the_layers_of_a_quiver() -> None:
    crossed = load("fiberpo_crossed")
    objective, _, levels, residuals, *_ = text(crossed).split("\n\n")
    gate = "aggregate_gate(C_{}, rollback=count(token)).per(mass)"
    assert [line[2:] for line in levels.splitlines()] == [
        "vels",
        "batch",
        f"   gate  {gate.format('batch')}",
        "────────",
        "domain",
        "   over batch  kernel proportional(count(trajectory))",
        f"   gate        {gate.format('domain')}",
        "modality",
        "   over batch  kernel proportional(count(trajectory))",
        f"   gate        {gate.format('modality')}",
        "────────",
        "trajectory",
        "   over domain    kernel uniform()",
        "   over modality  kernel uniform()",
        f"   gate           {gate.format('trajectory')}",
        "────────",
        "token",
        "   over trajectory  kernel uniform()",
        "   gate             clip_gate(epsilon).per(mass)",
    ]
    assert objective.startswith("fiberpo_crossed\n  J = ")
    assert residuals == (
        "residuals\n  of domain and modality by least squares in the mass (orthogonalise='projection')\n"
        "  of trajectory: its mean less the residuals of batch, domain and modality"
    )


@pytest.mark.parametrize("hierarchy", ALL, ids=lambda h: h.name)
def test_text_shows_every_fibration_and_every_gate(hierarchy: Hierarchy) -> None:
    shown = text(hierarchy)
    for stratum in hierarchy.strata:
        assert len(re.findall(rf"^[ │├└─]*{stratum}$", shown, re.MULTILINE)) == 1
    # one line per fibration, with its kernel
    assert len(re.findall(r"\bkernel +\S+\(", shown)) == len(hierarchy.fibrations)
    assert len(re.findall(r"^[ │]*gate +\S", shown, re.MULTILINE)) == len(hierarchy.strata)


def test_show_prints_assumptions_and_residuals() -> None:
    shown = text(QUIVER)
    assert (
        "assumes of every batch\n  balanced(domain, modality): they cross in proportional frequencies\n"
        "  populated(image_token, over=trajectory): at least one image_token over every trajectory\n"
    ) in shown
    assert "residuals\n  of trajectory, in means: trajectory - domain - modality + batch" in shown
    assert shown.count("   jointly  text_token and image_token share one reflecting kernel") == 1
    assert "residuals" not in text(load("fiberpo_modal"))


def test_parameters_and_attributes_are_listed() -> None:
    assert "  Parameter('tau_high', default=1.5, per_channel=True)" in text(AWKWARD)
    assert "  Attribute('weight', on=token, positive=True)" in text(AWKWARD)


def test_a_cycle_is_shown_and_ends() -> None:
    assert "(see above)" in text(CYCLE)
    assert r"&\mathrm{token} \to \mathrm{turn} \to \mathrm{token} \\" in latex(CYCLE)


def test_json_and_schema_on_the_command_line() -> None:
    shown = CliRunner().invoke(app, ["show", "fiberpo_domain", "--format", "json"])
    schema = CliRunner().invoke(app, ["show", "fiberpo", "--format", "schema"])
    assert shown.exit_code == schema.exit_code == 0
    jsonschema.validate(json.loads(shown.stdout), json.loads(schema.stdout))
    assert Hierarchy.model_validate_json(shown.stdout) == load("fiberpo_domain")


@pytest.mark.parametrize("form", ["text", "mermaid", "latex"])
def test_the_command_prints_what_the_functions_give(form: str) -> None:
    result = CliRunner().invoke(app, ["show", "gspo", "--format", form])
    assert result.exit_code == 0
    more = "\nmicro-batches\n  row-local\n" if form == "text" else ""
    shown = {"text": lambda h: folded(text(h), 80), "mermaid": mermaid, "latex": latex}[form](load("gspo"))
    assert result.stdout == f"{shown}\n{more}"


@pytest.mark.parametrize("hierarchy", ALL, ids=lambda h: h.name)
def test_lines_fold_at_commas_and_words_and_lose_nothing(hierarchy: Hierarchy) -> None:
    whole = text(hierarchy)
    for width in (60, 80, 120):
        for shown in (folded(whole, width), wrapped(whole, width)):
            assert re.sub(r"[\s│├└─]", "", shown) == re.sub(r"[\s│├└─]", "", whole)
            for line in shown.split("\n"):
                assert len(line) <= width or len(line.split()) <= 2, line


def test_a_folded_call_has_a_line_per_argument_and_a_comment_stays_one() -> None:
    assert folded("  a = where(x <= 1, f(x, 2), 0)/3", 20) == "  a = where(\n    x <= 1,\n    f(x, 2),\n    0\n  )/3"
    assert wrapped("  # a word, and more words", 14) == "  # a word,\n  # and more\n  # words"
    assert wrapped("  ✓ name  some words of it", 20) == "  ✓ name  some words\n          of it"
