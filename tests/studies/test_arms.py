"""Every loss of the study is declared as its table states, keeps its laws, and each placebo lacks one thing."""

import json

import pytest
import torch
from arms import ARMS, NAMES, ladder
from candidates import CANDIDATES, LOSSES
from rl import PROMPTS, ROWS, SAMPLES, Batch, Run, coefficients
from tasks import END, PROMPT, RESPONSE, lengths
from thorough import some

import fibration
from fibration.language.loading import shipped


def batch(drift):
    """Rows of all lengths, mean log ratios on both sides of every budget if `drift` is large."""
    draw = torch.Generator().manual_seed(1)
    ends = torch.randint(1, RESPONSE + 1, (1, PROMPTS, SAMPLES, 1), generator=draw)
    text = torch.where(torch.arange(RESPONSE) < ends, 5, END)
    shift = torch.randn(4, 1, 1, generator=draw) + torch.randn(4, 4 * SAMPLES, 1, generator=draw)
    ratio = drift * (
        shift.expand(4, -1, RESPONSE).reshape(ROWS, RESPONSE) + torch.randn(ROWS, RESPONSE, generator=draw)
    )
    old = -2.5 - torch.rand(ROWS, RESPONSE, generator=draw)
    rewards = (torch.rand(1, PROMPTS, SAMPLES, generator=draw) < 0.4).float()
    prompts = torch.zeros(1, PROMPTS, PROMPT, dtype=torch.int64)
    return old + ratio, Batch(prompts, text, old.view(1, PROMPTS, SAMPLES, RESPONSE), rewards)


def of(name, drift=0.3, step=5, seed=3, trust=1.0):
    now, given = batch(drift)
    arm = LOSSES[name]
    mine = Run("x", name, "unequal", seed, 1e-3, trust if arm.parameters or arm.clip_domains else None)
    values, measured = coefficients(arm, mine, {}, step, now, given, 0)
    mask = torch.arange(RESPONSE) < lengths(given.responses[0]).flatten()[:, None]
    assert bool((values[~mask] == 0).all())
    return values, measured


@pytest.mark.thorough
def test_every_loss_passes_its_laws_and_takes_its_scales():
    declared_here = [name for name, arm in LOSSES.items() if arm.hierarchy().name not in shipped()]
    for name in [*(n for n in declared_here if n in ARMS), *some((n for n in declared_here if n not in ARMS), 4)]:
        assert LOSSES[name].hierarchy().verify().ok, name
    for name, arm in LOSSES.items():
        declared = set(arm.hierarchy().parameters)
        for trust in arm.scales or (1.0,):
            assert set(arm.given(trust)) <= declared, name
        assert arm.of is None or (arm.of in ARMS and not arm.scales and ARMS[arm.of].of is None), name
        assert len(set(arm.scales)) == len(arm.scales) and arm.clip_domains == (name == "clip_domains")
    scaled = {name: arm.given(2.0) for name, arm in LOSSES.items() if arm.parameters}
    assert scaled["fiberpo"] == {"C_trajectory": {"+": 0.4, "-": 0.2}, "epsilon": 0.1}
    assert scaled["gspo"] == {"epsilon_low": 0.06, "epsilon_high": 0.08}


def test_the_ladder_and_the_search_have_the_published_strata():
    """Also where no number tells: prompt groups of equal size weigh alike whatever their kernel."""
    published = json.loads(fibration.load("fiberpo_domain").model_dump_json())
    for hierarchy in (ladder(4), CANDIDATES["clip_domain"].hierarchy()):
        found = json.loads(hierarchy.model_dump_json())
        for part in ("strata", "fibrations", "decomposition", "objective", "rows"):
            assert found[part] == published[part]


@pytest.mark.thorough
def test_each_placebo_lacks_one_part_of_its_loss():
    whole, measured = of("inward_domain")
    assert measured["gated/domain"] > 0 and measured["gated/prompt_group"] > 0
    assert ARMS["placebo_shuffled"].operator.hierarchy == ARMS["inward_domain"].operator.hierarchy
    assert torch.equal(of("clip_domains")[0], of("grpo")[0])
    for name in ("placebo_shuffled", "placebo_unbounded", "placebo_rollback", "published_wide"):
        found, its = of(name)
        assert not torch.equal(found, whole) and ARMS[name].of == "inward_domain"
        assert (
            its["outward"] > 0 and its["between"] == measured["between"]
        )  # what is measured takes domains as they are
    unbounded = of("placebo_unbounded")[1]
    assert unbounded["gated/domain"] == 0 and unbounded["gated/prompt_group"] == measured["gated/prompt_group"]
    given = {name: ARMS[name].given(0.5) for name in ("inward_domain", "placebo_unbounded", "placebo_rollback")}
    assert given["placebo_unbounded"] == {**given["inward_domain"], "C_domain": 1e9}
    assert given["placebo_rollback"] == given["inward_domain"] == ARMS["published_wide"].given(0.5)
    # inside of all budgets no coarse gate does anything, and placebos are what they are beside
    inside = of("inward_domain", 0.002)[0]
    for name in (
        "placebo_shuffled",
        "placebo_unbounded",
        "placebo_rollback",
        "published_wide",
        "inward_ceiling",
        "inward_narrow",
    ):
        torch.testing.assert_close(of(name, 0.002)[0], inside, rtol=1e-5, atol=1e-9)


@pytest.mark.thorough
def test_shuffled_labels_are_per_group_and_change_in_every_step(monkeypatch):
    seen = []
    op = ARMS["placebo_shuffled"].operator
    real = type(op).index
    monkeypatch.setattr(type(op), "index", lambda self, **given: seen.append(given) or real(self, **given))
    for step, seed in ((5, 3), (6, 3), (5, 4), (5, 3)):
        of("placebo_shuffled", step=step, seed=seed)
    of("inward_domain")
    *shuffled, real_labels = [given["domain"] for given in seen]
    assert real_labels == [row // (ROWS // 4) for row in range(ROWS)]
    for labels in shuffled:
        groups = [labels[k : k + SAMPLES] for k in range(0, ROWS, SAMPLES)]
        assert all(len(set(g)) == 1 for g in groups) and sorted(labels) == real_labels
    assert shuffled[0] == shuffled[3] and len({tuple(x) for x in [*shuffled, real_labels]}) == 4
    assert all(given["prompt_group"] == [row // SAMPLES for row in range(ROWS)] for given in seen)


@pytest.mark.thorough
def test_ceilings_of_the_search_are_in_nats_on_every_level():
    """What comes back by itself passes whole below the ceiling of 0.3, and no further: budgets are far beyond."""
    wide = {f"C_{level}": 9.0 for level in NAMES} | {"epsilon": 9.0}
    arm = CANDIDATES["clip_ceiling"]
    mine = Run("x", "clip_ceiling", "unequal", 3, 1e-3, 1.0)
    for drift, cut in ((0.02, False), (1.5, True)):
        now, given = batch(drift)
        measured = coefficients(arm, mine, wide, 0, now, given, 0)[1]
        assert all((measured[f"gated/{level}"] > 0) == cut for level in ("token", *NAMES)), measured
