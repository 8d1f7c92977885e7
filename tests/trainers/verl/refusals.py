"""Mistakes that must be refused, with the words of each error. Each function of `REFUSALS` raises."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import rollouts
import torch
import torch.distributed as dist
from cases import CASES, GDPO, MEASURED, OF_REWARDS, OF_TEACHER, OF_THREE, OPD, VERLS, Case, Rollouts, distil, spread
from tensordict import NonTensorData, NonTensorStack
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
from verl.workers.config import PolicyLossConfig
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from fibration.trainers.verl import FibrationPolicyLossConfig
from fibration.trainers.verl.loss import HERE

LOSS = "actor.policy_loss."
GSPO = {LOSS + "hierarchy": "gspo", LOSS + "parameters": {}}
NONE = {LOSS + "parameters": {}}
DROPS = {"model.override_config.attention_dropout": 0.1}


def configured(**changes: Any) -> Callable[[Rollouts], Any]:
    """Options of the policy loss that its config, or the worker, refuses."""
    return lambda data: data.watched(Case({LOSS + key: value for key, value in changes.items()}))


def optioned(changes: dict[str, Any]) -> Callable[[Rollouts], Any]:
    return lambda data: data.watched(Case(changes))


def trained(data: Rollouts, changes: dict[str, Any], **more: Any) -> Any:
    """A mini-batch that is refused; a field in `more` that is None is taken out of it."""
    rows = rollouts.carried(data.rows[False], "padded", torch.float64)
    for name, value in more.items():
        rows = rows.exclude(name)
        if value is not None:
            rows[name] = value
    return data.watched(Case(changes)).train(rows)


def labelled(data: Rollouts, label: Any) -> Any:
    """Row 3's domain is `label`, and that of a row that is not trained on is none."""
    given = [row.source if any(row.mask) else None for row in data.rows[False]]
    assert None in given[:3] or None in given[4:]
    given[3] = label
    return trained(data, {}, data_source=NonTensorStack(*(NonTensorData(one) for one in given)))


def elsewhere(data: Rollouts) -> Any:
    """In a worker that computes no coefficients."""
    with patch.object(ActorRolloutRefWorker, "actor_worker_cls", TrainingWorker):
        made = data.watched(Case())  # puts ours in its place
        ActorRolloutRefWorker.actor_worker_cls = TrainingWorker
        theirs = TrainingWorker(config=made.actor.config)
    theirs.reset()
    theirs.set_loss_fn(made.actor.loss_fn)
    made.actor = made.worker.actor = theirs
    return made.train(rollouts.carried(data.rows[False], "padded", torch.float64))


def beside_another_worker(data: Rollouts) -> Any:
    class Other(TrainingWorker):
        pass

    with patch.object(ActorRolloutRefWorker, "actor_worker_cls", Other):
        return data.watched(Case())


def another_engine(data: Rollouts) -> Any:
    made = data.watched(Case())
    object.__setattr__(made.actor.engine_config, "strategy", "veomni")
    return made.actor.set_loss_fn(made.actor.loss_fn)


def distilled(data: Rollouts) -> Any:
    def distillation_ppo_loss(**_: Any) -> None:
        raise AssertionError("never called")

    made = data.watched(Case())
    return made.actor.set_loss_fn(partial(distillation_ppo_loss, config=made.actor.loss_fn.keywords["config"]))


def with_teacher(**options: Any) -> Callable[[Rollouts], Any]:
    """verl's loss with a teacher whose log-probs the hierarchy reads, with these options."""
    changes = {**OPD["changes"], LOSS + "policies": VERLS}
    return lambda data: distil(data.watched(Case(changes, budgets={})), **options)


def lost_rows(data: Rollouts) -> Any:
    """An engine that trains on the first micro-batches alone."""
    from verl.workers.engine.fsdp import transformer_impl as engine

    def fewer(**given: Any) -> Any:
        pieces, order = own(**given)
        return (pieces[:-1] if torch.is_grad_enabled() else pieces), order

    own = engine.prepare_micro_batches
    with patch.object(engine, "prepare_micro_batches", fewer):
        return trained(data, {})


def replaced_loss(data: Rollouts) -> Any:
    """A loss in whose gradient the policy loss has no part."""
    made = data.watched(Case())
    own = POLICY_LOSS_REGISTRY["fibration"]

    def detached(**given: Any) -> Any:
        value, metrics = own(**given)
        return value.detach() + given["log_prob"].sum(), metrics

    with patch.dict(POLICY_LOSS_REGISTRY, {"fibration": detached}):
        return made.train(rollouts.carried(data.rows[False], "padded", torch.float64))


def of_pieces(data: Rollouts) -> Any:
    """Several rows of one session, and nothing said of them."""
    return data.watched(Case(pieces=True)).train(rollouts.carried(spread(data.rows[True]), "padded", torch.float64))


def not_finite(data: Rollouts, name: str) -> Any:
    """Log-probs of the last rank are NaN: no rank makes the optimizer step."""

    def spoil(module: Any, args: Any, output: Any) -> Any:
        output.logits = output.logits * torch.nan
        return output

    made = data.watched(CASES[name])
    if dist.get_rank() == dist.get_world_size() - 1:
        made.engine.module.register_forward_hook(spoil)
    try:
        return data.train(made, CASES[name])
    finally:
        assert made.steps == []


# What is refused, and words that the error has.
REFUSALS: dict[str, tuple[Callable[[Rollouts], Any], tuple[str, ...]]] = {
    "no hierarchy": (configured(hierarchy=""), ("policy_loss.hierarchy is not set", "path.py:NAME")),
    "an unknown parameter": (configured(parameters={"C_family": 0.1}), ("C_family", "C_domain")),
    "unknown metrics": (configured(metrics="some"), ("'some'", "'levels', 'all'")),
    "another backend": (configured(backend="cobol"), ("cobol", "torch")),
    "another loss mode": (configured(loss_mode="gspo"), ("loss_mode=gspo", "loss_mode=fibration")),
    "bypass_mode": (configured(loss_mode="bypass_mode"), ("bypass_mode replaces this loss by its own",)),
    "verl's own config": (
        configured(
            _target_=f"{PolicyLossConfig.__module__}.PolicyLossConfig", hierarchy=None, backend=None, parameters=None
        ),
        ("loss_mode=fibration with the config PolicyLossConfig", "_target_=fibration.trainers.verl"),
    ),
    "the corrections of another loss": (
        configured(rollout_correction={"bypass_mode": True, "rollout_rs": "seq_mean_k1"}),
        ("rollout_correction={", "seq_mean_k1", "leave it out"),
    ),
    "trajectories as coarse as prompts": (
        configured(trajectory=["uid"]),
        ("trajectory=[uid], which names a prompt_group", "trajectory=[uid,session_id]"),
    ),
    "trajectories that are labels of one field of two": (
        configured(hierarchy="fiberpo_domain", labels={"domain": ["ability", "task"]}, trajectory=["task"]),
        ("trajectory=[task], which names a domain",),
    ),
    "trajectories as coarse as prompts that have no gate": (
        configured(hierarchy="gspo", parameters={}, trajectory=["uid"]),
        ("trajectory=[uid], which names a prompt_group",),
    ),
    "no mapping of parameters": (configured(parameters=[["epsilon", 0.1]]), ("parameters=[[", "{name: value}")),
    "labels of nothing": (configured(labels={"domain": []}), ("labels of 'domain' are in []", "name of a field")),
    "a reduction of tokens": (
        optioned({"actor.loss_agg_mode": "seq-mean-token-mean"}),
        ("actor.loss_agg_mode=seq-mean-token-mean", "token-mean"),
    ),
    "a divisor of tokens": (optioned({"actor.loss_scale_factor": 512}), ("actor.loss_scale_factor=512", "None")),
    "a clip of verl's": (
        optioned({**GSPO, "actor.clip_ratio": 0.3, "actor.clip_ratio_high": 0.28}),
        (
            "actor.clip_ratio=0.3",
            "default, 0.2",
            f"+{HERE}.parameters.epsilon_low=0.3 +{HERE}.parameters.epsilon_high=0.28",
        ),
    ),
    "a clip of verl's for several levels": (
        optioned({"actor.clip_ratio": 0.3}),
        ("actor.clip_ratio=0.3", "parameters of 'fiberpo_domain': ", "epsilon"),
    ),
    "a clip of another loss": (configured(clip_cov_ub=9.0), ("clip_cov_ub=9.0", "5.0")),
    "dropout": (
        optioned(DROPS),
        ("the model has dropout", "attention_dropout=0.1", "couples all rows", "override_config.attention_dropout=0"),
    ),
    "dropout, and ratios of 1": (
        optioned({**DROPS, **GSPO, LOSS + "reuse_old_log_probs": True}),
        ("attention_dropout=0.1", "reuse_old_log_probs=true takes the ratios"),
    ),
    "dropout, and trajectories of several rows": (
        optioned({**DROPS, **GSPO, LOSS + "trajectory": ["uid", "session_id"]}),
        ("attention_dropout=0.1", "'gspo' couples the tokens of a trajectory"),
    ),
    "a field that lacks": (
        lambda data: trained(data, {}, data_source=None),
        ("'domain'", "'data_source'", "labels.domain"),
    ),
    "a field of tokens": (
        lambda data: trained(data, {LOSS + "labels": {"domain": "advantages"}}),
        ("'advantages'", "several numbers per row"),
    ),
    "labels that are lists": (
        lambda data: labelled(data, ["math", "sums"]),
        ("row 3 has ['math', 'sums'] in the field 'data_source'", "labels of 'domain'", "labels.domain=FIELD"),
    ),
    "the same list in every row": (
        lambda data: trained(data, {}, data_source=NonTensorData(["math"] * 20, batch_size=[20])),
        ("row 0 has ['math', 'math',", "'data_source'"),
    ),
    "no label": (lambda data: labelled(data, None), ("row 3 has None in the field 'data_source'",)),
    "what sampled, of a field that lacks": (
        lambda data: trained(data, OF_THREE, rollout_log_probs=None),
        ("log_prob(rollout)", "no field 'rollout_log_probs'", "calculate_log_probs=true", "bypass_mode=false"),
    ),
    "what sampled, corrected for twice": (
        lambda data: trained(data, OF_THREE, rollout_is_weights=torch.ones(20, rollouts.LONGEST)),
        ("log_prob(rollout)", "'rollout_is_weights'", "twice", "rollout_correction.rollout_is=null"),
    ),
    "a policy that it has not": (
        configured(hierarchy=rollouts.THREE.replace("of_three", "of_teacher")),
        ("log_prob(teacher)", "'teacher'", "rollout_log_probs"),
    ),
    "a reference that lacks": (
        lambda data: trained(data, OF_REWARDS, ref_log_prob=None),
        ("log_prob(reference)", "no field 'ref_log_prob'", "use_kl_loss=true, with kl_loss_coef=0"),
    ),
    "two divergences": (
        optioned(OF_REWARDS | {"actor.use_kl_loss": True, "actor.kl_loss_coef": 0.1}),
        ("log_prob(reference)", "kl_loss_coef=0.1", "two penalties", "actor.kl_loss_coef=0"),
    ),
    "a divergence off the rewards": (
        lambda data: trained(data, OF_REWARDS, token_level_scores=torch.zeros(20, rollouts.LONGEST)),
        ("log_prob(reference)", "'token_level_rewards' differ from 'token_level_scores'", "use_kl_in_reward=false"),
    ),
    "no rewards": (
        lambda data: trained(data, OF_REWARDS, token_level_rewards=None, token_level_scores=None),
        ("'of_rewards' makes advantages of rewards", "none", "replace(advantages=None)"),
    ),
    "a reward of a masked token": (
        lambda data: trained(
            data, {LOSS + "hierarchy": rollouts.TO_GO}, token_level_rewards=torch.ones(20, rollouts.LONGEST)
        ),
        ("has a reward, and is masked", "'to_go' adds them up"),
    ),
    "an order over several rows": (
        configured(hierarchy=rollouts.TO_GO, trajectory=["uid", "session_id"]),
        ("trajectory=[uid,session_id] with 'to_go', which reads after(reward", "verl does not order the rows"),
    ),
    "no old log-probs": (lambda data: trained(data, {}, old_log_probs=None), ("no field 'old_log_probs'",)),
    "several rows of a session": (
        of_pieces,
        ("rows 0 and 1 are outputs of one session", "trajectory=[uid,session_id]"),
    ),
    "log-probs that are NaN, of a row-local loss": (
        lambda data: not_finite(data, "rows alone, fixed, padded"),
        ("log-prob", "nan"),
    ),
    "log-probs that are NaN, of a coupled loss": (lambda data: not_finite(data, "fixed, padded"), ("log-prob", "nan")),
    "another worker's advantages": (elsewhere, ("no mini-batch whose coefficients it could take", "_target_")),
    "beside another worker": (beside_another_worker, ("is already", "Other", "FibrationTrainingWorker")),
    "another engine": (another_engine, ("actor.strategy=veomni", "fsdp")),
    "distillation": (distilled, ("distillation_ppo_loss", "ppo_loss itself", "policies.teacher=teacher_logprobs")),
    "distillation of many tokens": (
        with_teacher(loss_mode="forward_kl_topk"),
        ("loss_mode=forward_kl_topk", "scores the sampled tokens", "loss_mode=k1"),
    ),
    "distillation with a coefficient": (
        with_teacher(loss_mode="k1", distillation_loss_coef=0.5),
        ("distillation_loss.distillation_loss_coef=0.5", "default, 1.0"),
    ),
    "an attribute without a field": (
        configured(hierarchy="gdpo", parameters={}, attributes={"reward_1": "brief"}),
        ("no numbers for the attribute 'reward_2'", "attributes.reward_2=FIELD"),
    ),
    "a field that is no name": (
        configured(hierarchy="gdpo", parameters={}, attributes={"reward_1": ["brief"]}),
        ("attributes.reward_1=['brief']", "the name of a field"),
    ),
    "a teacher without a field": (
        configured(hierarchy="opd", parameters={}),
        ("log_prob(teacher)", "policies.teacher=FIELD"),
    ),
    "a model as a teacher": (
        lambda data: FibrationPolicyLossConfig(hierarchy="opd", policies={"teacher": rollouts.model()}),
        ("policies.teacher=LlamaForCausalLM(", "policies.teacher=FIELD", "teacher_logprobs"),
    ),
    "a field of numbers that lacks": (
        lambda data: trained(data, GDPO["changes"] | NONE, brief=None),
        ("no field 'brief'", "the attribute 'reward_2'", "attributes.reward_2=FIELD"),
    ),
    "a key that lacks": (
        lambda data: trained(
            data,
            GDPO["changes"] | NONE | {LOSS + "attributes": {"reward_1": "extra_fields.score", "reward_2": "brief"}},
        ),
        ("no row has the key 'score' of the field 'extra_fields.score'", "the attribute 'reward_1'", "keys "),
    ),
    "a number that is NaN": (
        lambda data: trained(
            data, MEASURED["changes"] | NONE, level=torch.where(torch.arange(20) == 3, torch.nan, torch.ones(20))
        ),
        ("row 3 has nan in the field 'level'", "attribute 'difficulty' of a trajectory", "a finite number"),
    ),
    "a token's number that is NaN": (
        lambda data: trained(data, MEASURED["changes"] | NONE, entropy=torch.full((20, rollouts.LONGEST), torch.nan)),
        ("of row 0 has nan in the field 'entropy'", "attribute 'entropy' of a token"),
    ),
    "numbers of too many tokens": (
        lambda data: trained(data, MEASURED["changes"] | NONE, entropy=torch.ones(20, rollouts.LONGEST + 1)),
        ("the field 'entropy'", f"has shape [20, {rollouts.LONGEST + 1}]", f"[20, {rollouts.LONGEST}]"),
    ),
    "numbers of too few tokens": (
        lambda data: trained(data, MEASURED["changes"] | NONE, entropy=torch.ones(20, rollouts.LONGEST - 1)),
        ("the field 'entropy'", f"has shape [20, {rollouts.LONGEST - 1}]", f"[20, {rollouts.LONGEST}]"),
    ),
    "numbers that end before a row's tokens do": (
        lambda data: trained(
            data,
            MEASURED["changes"] | NONE,
            entropy=torch.nested.as_nested_tensor(
                [torch.ones(1), *[torch.ones(rollouts.LONGEST)] * 19], layout=torch.jagged
            ),
        ),
        ("row 0 of the field 'entropy'", "the attribute 'entropy'", "has 1 numbers", "one for each of its"),
    ),
    "a number per token for a row": (
        lambda data: trained(data, MEASURED["changes"] | NONE | {LOSS + "attributes": {"difficulty": "advantages"}}),
        ("'advantages'", "several numbers per row"),
    ),
    "log-probs of a teacher that lack": (
        lambda data: trained(data, OPD["changes"] | NONE, teacher_log_probs=None),
        ("no field 'teacher_log_probs'", "log-probs of the policy 'teacher'", "policies.teacher=FIELD"),
    ),
    "two numbers of a domain": (
        lambda data: trained(data, OF_TEACHER, part=torch.arange(20.0)),
        ("of domain 'math' have 0 and 1 for its attribute 'part'",),
    ),
    "rows that are not trained on": (lost_rows, ("18 of the 20 rows",)),
    "another loss in its place": (replaced_loss, ("the advantages of 4 of 4 micro-batches got no gradient",)),
}


# What ranks refuse together, and the words of that.
TOGETHER = {
    "several rows of a session": ("row 0 of rank 0 and row 0 of rank 1 are outputs of one session",),
    "log-probs that are NaN, of a row-local loss": ("rank 1: ", "nan"),
    "log-probs that are NaN, of a coupled loss": ("rank 1: ", "nan"),
}


def refused(data: Rollouts, name: str) -> dict[str, Any]:
    own = ActorRolloutRefWorker.actor_worker_cls
    try:
        REFUSALS[name][0](data)
    except Exception as error:
        chain = [error, error.__cause__, error.__context__]
        return {"error": " ".join(f"{type(e).__name__}: {e}" for e in chain if e is not None)}
    finally:
        ActorRolloutRefWorker.actor_worker_cls = own
    return {"error": None}
