"""Mini-batches that verl's own worker trains on with the policy loss `fibration`, and mistakes put into the worker."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import recorded_worker  # before anything of verl.workers
import rollouts
import torch
import torch.distributed as dist
from recorded_worker import Watched, dynamic
from rollouts import Row, Terms
from verl.trainer.distillation import distillation_ppo_loss
from verl.utils import tensordict_utils as tu
from verl.utils.metric import reduce_metrics
from verl.utils.py_functional import rename_dict
from verl.workers.config import DistillationLossConfig
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker
from verl.workers.utils.padding import no_padding_2_padding

from fibration.trainers.verl import FibrationTrainingWorker, loss

PACKED = {"model.use_remove_padding": True}
KL = {"actor.use_kl_loss": True, "actor.kl_loss_coef": 0.3, "actor.entropy_coeff": 0.1}
KL |= {"actor.loss_scale_factor": 512}  # theirs, and of no effect with token-mean
FIVE = {"actor.ppo_micro_batch_size_per_gpu": 5}
OF_THREE = {"actor.policy_loss.hierarchy": rollouts.THREE}
OF_REWARDS = {"actor.policy_loss.hierarchy": rollouts.REWARDS}
EVERY = {**FIVE, "actor.policy_loss.metrics": "all"}


def spread(rows: list[Row]) -> list[Row]:
    """Every other row: no prompt group is on one rank alone."""
    return rows[dist.get_rank() :: dist.get_world_size()]


def filled_up(rows: list[Row]) -> list[Row]:
    """Rows of padding between the others, as many on each rank."""
    mine, first = spread(rows), 1000 * (dist.get_rank() + 1)
    return [rollouts.padding(first), *mine[:4], *(rollouts.padding(first + n) for n in (1, 2)), *mine[4:]]


def equal_rewards(rows: list[Row]) -> list[Row]:
    """Three prompt groups of seven, and with them the domain "logic", have no advantage."""
    dead = ("prompt 1", "prompt 3", "prompt 5", "prompt 6")
    return [replace(row, advantages=[0.0] * len(row.mask)) if row.uid in dead else row for row in rows]


def on_one_rank(rows: list[Row]) -> list[Row]:
    """The first rank has all rows, the others padding; alone, it has a mini-batch of padding after the others."""
    nothing = [rollouts.padding(1000 * (dist.get_rank() + 1) + n) for n in range(len(rows))]
    if dist.get_world_size() == 1:
        return [*rows, *nothing]
    return nothing if dist.get_rank() else rows


@dataclass(frozen=True)
class Case:
    """`changes` of the options, of the `terms` of the loss, and of how rows are given."""

    changes: dict[str, Any] = field(default_factory=lambda: FIVE)
    layout: str = "padded"
    dtype: torch.dtype = torch.float64
    pieces: bool = False
    part: Callable[[list[Row]], list[Row]] = spread
    terms: Terms = field(default_factory=Terms)
    budgets: dict[str, Any] | None = None  # in the place of those with which every regime is met
    said: dict[str, Any] = field(default_factory=dict)
    dead: bool = False  # about half of the groups have equal rewards
    every_row: bool = False  # something else reads them
    distilled: str = ""  # verl's loss with a teacher, of this mode

    @property
    def couples_tokens(self) -> bool:
        """Whether the rows of a trajectory decide coefficients together."""
        return self.pieces and self.terms.loss != "grpo"


GSPO: dict[str, Any] = {"terms": Terms(loss="gspo"), "budgets": {"epsilon_low": 0.05, "epsilon_high": 0.08}}
GSPO["changes"] = {"actor.policy_loss.hierarchy": "gspo"}
MASKED: dict[str, Any] = {"terms": Terms(loss="geometric_mask"), "budgets": {"least": 0.9, "most": 1.1}}
MASKED["changes"] = {"actor.policy_loss.hierarchy": "geometric_mask"}
OPO: dict[str, Any] = {"terms": Terms(loss="opo", hierarchy="opo"), "budgets": {}}
OPO["changes"] = FIVE | {"actor.policy_loss.hierarchy": "opo"}
GRPO: dict[str, Any] = {"terms": Terms(weighted=True, kl=0.3, entropy=0.1, loss="grpo"), "budgets": {}}
GRPO["changes"] = KL | {"actor.policy_loss.hierarchy": "grpo"}


LOSS = "actor.policy_loss."
OPD: dict[str, Any] = {"terms": Terms(loss="opd", hierarchy="opd"), "budgets": {}}
OPD["changes"] = {LOSS + "hierarchy": "opd", LOSS + "policies": {"teacher": "teacher_log_probs"}}
VERLS = {"teacher": "teacher_logprobs"}
GDPO: dict[str, Any] = {"terms": Terms(loss="gdpo", hierarchy="gdpo"), "budgets": {}}
REWARD_2 = {"reward_1": "extra_fields.reward_extra_info.right", "reward_2": "brief"}
GDPO["changes"] = {LOSS + "hierarchy": "gdpo", LOSS + "attributes": REWARD_2}
MEASURED: dict[str, Any] = {"terms": Terms(loss=rollouts.MEASURED), "budgets": {}}
MEASURED["changes"] = {LOSS + "hierarchy": rollouts.MEASURED, LOSS + "attributes": {"difficulty": "level"}}
GAE: dict[str, Any] = {"terms": Terms(loss="ppo_gae", hierarchy="ppo_gae"), "budgets": {}}
GAE["changes"] = {LOSS + "hierarchy": "ppo_gae"}
REMAX: dict[str, Any] = {"terms": Terms(loss="remax", hierarchy="remax"), "budgets": {}}
REMAX["changes"] = {LOSS + "hierarchy": "remax"}
OF_TEACHER = {
    LOSS + "hierarchy": rollouts.TAUGHT,
    LOSS + "policies": {"teacher": "teacher_log_probs"},
    LOSS + "attributes": {"part": "part"},
}


def alone(of: dict[str, Any], changes: dict[str, Any], layout: str = "padded", **more: Any) -> Case:
    """A row-local loss."""
    return Case(**(of | {"changes": of["changes"] | changes, "layout": layout, **more}))


CASES = {
    "fixed, padded": Case(),
    "fixed, nested": Case(layout="nested"),
    "fixed, packed, recomputed": Case(FIVE | PACKED | {"model.enable_gradient_checkpointing": True}, "nested"),
    "fixed, float32": Case(dtype=torch.float32),
    "one row in a micro-batch, every metric": Case(EVERY | {"actor.ppo_micro_batch_size_per_gpu": 1}, "nested"),
    "old log-probs of other weights": Case(FIVE | {"actor.policy_loss.reuse_old_log_probs": True}),
    "dynamic, padded": Case(dynamic(32)),
    "dynamic, nested, packed": Case(dynamic(40) | PACKED, "nested"),
    "dynamic, nested, float32": Case(dynamic(32), "nested", torch.float32),
    "mini-batches and epochs": Case(said={"mini_batch_size": 10, "epochs": 2, "shuffle": True}),
    "mini-batches, dynamic": Case(dynamic(24), "nested", said={"mini_batch_size": 10, "shuffle": True, "seed": 3}),
    "padding rows": Case(FIVE | {"actor.ppo_micro_batch_size_per_gpu": 1}, part=filled_up),
    "padding rows, dynamic, nested": Case(dynamic(32), "nested", part=filled_up),
    "a rank of padding": Case(part=on_one_rank),
    "a rank of padding, dynamic, nested": Case(dynamic(64), "nested", part=on_one_rank),
    "rows of one trajectory": Case(FIVE | {"actor.policy_loss.trajectory": ["uid", "session_id"]}, pieces=True),
    "rows of one trajectory, dynamic": Case(
        dynamic(32) | {"actor.policy_loss.trajectory": ["uid", "session_id"]}, "nested", pieces=True
    ),
    "weights": Case(terms=Terms(weighted=True)),
    "weights, dynamic, nested": Case(dynamic(32), "nested", terms=Terms(weighted=True)),
    "what sampled": Case(FIVE | OF_THREE, terms=Terms(three=True)),
    "what sampled, dynamic, nested, padding rows": Case(
        dynamic(32) | OF_THREE, "nested", part=filled_up, terms=Terms(three=True)
    ),
    "rewards and a reference": Case(FIVE | OF_REWARDS, terms=Terms(hierarchy=rollouts.REWARDS)),
    "rewards, mini-batches of parts of groups, dynamic": Case(
        dynamic(32) | OF_REWARDS,
        "nested",
        terms=Terms(hierarchy=rollouts.REWARDS),
        said={"mini_batch_size": 10, "shuffle": True},
    ),
    "rewards from each token on": Case(
        FIVE | {"actor.policy_loss.hierarchy": rollouts.TO_GO}, "nested", terms=Terms(hierarchy=rollouts.TO_GO)
    ),
    "a teacher and an attribute": Case(FIVE | OF_TEACHER, terms=Terms(hierarchy=rollouts.TAUGHT)),
    "a teacher and an attribute, dynamic, nested, padding rows": Case(
        dynamic(32) | OF_TEACHER, "nested", part=filled_up, terms=Terms(hierarchy=rollouts.TAUGHT)
    ),
    "rows alone, a teacher": alone(OPD, FIVE),
    "rows alone, a teacher, mini-batches of parts of groups, dynamic": alone(
        OPD, dynamic(32) | PACKED, "nested", said={"mini_batch_size": 10, "shuffle": True}
    ),
    "rows alone, verl's own teacher": alone(OPD, FIVE | {LOSS + "policies": VERLS}, "nested", distilled="k1"),
    "rows alone, verl's own teacher, dynamic, packed, padding rows": alone(
        OPD, dynamic(32) | PACKED | {LOSS + "policies": VERLS}, "nested", distilled="k3", part=filled_up
    ),
    "rows alone, two rewards": alone(GDPO, FIVE),
    "rows alone, two rewards, padding rows, dynamic, nested": alone(GDPO, dynamic(32), "nested", part=filled_up),
    "rows alone, attributes of rows and tokens": alone(MEASURED, FIVE),
    "rows alone, attributes of rows and tokens, dynamic, nested": alone(
        MEASURED, dynamic(32) | PACKED, "nested", part=filled_up
    ),
    "rows alone, values of verl's critic": alone(GAE, dynamic(32), "nested", part=filled_up),
    "rows alone, no ratio, verl's greedy rewards": alone(REMAX, FIVE),
    "KL and entropy": Case(FIVE | KL, terms=Terms(kl=0.3, entropy=0.1)),
    "a temperature": Case(FIVE | PACKED, "nested", terms=Terms(temperature=0.75)),  # verl rounds it to float32
    "rows alone, fixed, padded": alone(GSPO, FIVE),
    "rows alone, dynamic, nested, packed": alone(GSPO, dynamic(40) | PACKED, "nested"),
    "rows alone, dynamic, nested, float32": alone(GSPO, dynamic(32), "nested", dtype=torch.float32),
    "rows alone, padding rows, dynamic, nested": alone(GSPO, dynamic(32), "nested", part=filled_up),
    "rows alone, a rank of padding": alone(GSPO, FIVE, part=on_one_rank),
    "rows alone, mini-batches and epochs": alone(
        GSPO, FIVE, said={"mini_batch_size": 10, "epochs": 2, "shuffle": True}
    ),
    "rows alone, a mask of what sampled, dynamic": alone(MASKED, dynamic(32), "nested"),
    "rows alone, KL and entropy, weights, dynamic": alone(GRPO, dynamic(32) | PACKED, "nested"),
    "rows alone, no ratio, dynamic": alone(OPO, dynamic(32), "nested"),
    "rows alone, tokens of rows of one trajectory": alone(
        GRPO, dynamic(32) | {"actor.policy_loss.trajectory": ["uid", "session_id"]}, "nested", pieces=True
    ),
    "rows of one trajectory and of none else": alone(
        GSPO, FIVE | {"actor.policy_loss.trajectory": ["uid", "session_id"]}, pieces=True
    ),
    "equal rewards, padded": alone(GSPO, FIVE, dead=True),
    "equal rewards, dynamic, nested, packed": alone(GSPO, dynamic(32) | PACKED, "nested", dead=True),
    "equal rewards, domains": Case(dead=True),
    "equal rewards, domains, dynamic, nested": Case(dynamic(32), "nested", dead=True),
    "equal rewards, KL and entropy": alone(GRPO, dynamic(32) | PACKED, "nested", dead=True),
    "equal rewards, all rows trained on": alone(
        GSPO, FIVE | {"actor.policy_loss.skip_dead_rows": False}, dead=True, every_row=True
    ),
    "KL and entropy, weights, dynamic": Case(dynamic(32) | KL | PACKED, "nested", terms=Terms(True, 0.3, 0.1)),
}


def distil(found: Watched, **options: Any) -> None:
    """Give the actor verl's loss with a teacher, as verl does with `distillation.enabled`."""
    own = found.actor.loss_fn.keywords["config"]
    config = SimpleNamespace(distillation_loss=DistillationLossConfig(**options))
    found.actor.set_loss_fn(partial(distillation_ppo_loss, config=own, distillation_config=config))


def apart(layout: list[list[int]], sources: dict[int, str]) -> list[set[Any]]:
    """The domains of micro-batches, joined where they share one; a micro-batch without tokens is apart."""
    found: list[set[Any]] = []
    for number, rows in enumerate(layout):
        mine = {sources[row] for row in rows if row in sources} or {number}
        found, joined = [one for one in found if not one & mine], [one for one in found if one & mine]
        found.append(mine.union(*joined))
    return found


class Rollouts:
    """The rows, and budgets with which every regime is met; made once."""

    def __init__(self, model: Path) -> None:
        self.model = model
        self.rows = {pieces: rollouts.rows(pieces) for pieces in (False, True)}
        self.budgets = {pieces: rollouts.narrow(rows) for pieces, rows in self.rows.items()}

    @classmethod
    def of_ranks(cls, folder: Path) -> Rollouts:
        """The rows on each rank of a new group, whose model the first rank saves."""
        dist.init_process_group("gloo")
        model = folder / "model"
        if dist.get_rank() == 0:
            rollouts.save(model)
        dist.barrier()
        return cls(model)

    def parameters(self, case: Case) -> dict[str, Any]:
        return self.budgets[case.pieces] if case.budgets is None else case.budgets

    def fewest(self, case: Case, step: recorded_worker.Step) -> int:
        """Forward passes before the step: of all micro-batches but the first of those that share domains.

        That is of all but the first where domains lie on several ranks, or rows are parts of a trajectory.
        """
        sources = {row.number: row.source for row in self.rows[case.pieces] if any(row.mask)}
        layouts = recorded_worker.everyone(step.layout)
        if not sources.keys() & set(step.rows) or (case.terms.loss and not case.couples_tokens):
            return 0
        on = [{sources.get(number) for rows in layout for number in rows} - {None} for layout in layouts]
        if case.pieces or len(set().union(*on)) < sum(map(len, on)):
            return max(map(len, layouts)) - 1
        return max(len(layout) - len(apart(layout, sources)) for layout in layouts)

    def watched(self, case: Case) -> Watched:
        changes = {"actor.policy_loss.parameters": self.parameters(case)} | case.changes
        found = Watched(self.model, changes, case.dtype)
        if case.distilled:
            distil(found, loss_mode=case.distilled)
        return found

    def train(self, found: Watched, case: Case) -> dict[str, Any]:
        rows = case.part(self.carried(case))
        data = rollouts.carried(rows, case.layout, case.dtype, case.terms.weighted)
        said = dict(case.said)
        if case.part is on_one_rank and dist.get_world_size() == 1:
            said["mini_batch_size"] = len(rows) // 2
        return found.train(data, temperature=case.terms.temperature, **said)

    def results(self, case: Case) -> list[dict[str, Any]]:
        """What each optimizer step made, beside what is right."""
        found = self.watched(case)
        said = self.train(found, case)
        return [self.judged(case, step, n, said) for n, step in enumerate(found.steps)]

    def carried(self, case: Case) -> list[Row]:
        rows = equal_rewards(self.rows[case.pieces]) if case.dead else self.rows[case.pieces]
        if case.terms.loss != "gspo":
            return rows
        of = {(row.uid, row.session): row.advantages[0] for row in rows}  # its clip reads that of a trajectory
        return [replace(row, advantages=[of[row.uid, row.session]] * len(row.mask)) for row in rows]

    def given(self, case: Case) -> list[Row]:
        """The rows, with the advantages that are right for them."""
        rows = self.carried(case)
        return rollouts.compared(rows, case.terms.hierarchy) if case.terms.hierarchy else rows

    def judged(self, case: Case, step: recorded_worker.Step, number: int, said: dict[str, Any]) -> dict[str, Any]:
        """`said`: what `update_actor` returned of all steps."""
        logged = {key.removeprefix("fibration/"): value for key, value in step.metrics.items()}
        result: dict[str, Any] = {
            "rows": len(step.rows),
            "layout": step.layout,
            "passed": step.passed,
            "forwards": step.forwards,
            "fewest": self.fewest(case, step),
            "kept": step.kept,
        }
        result |= {name: said[key][number] for name, key in {"loss": "loss", "pg_loss": "actor/pg_loss"}.items()}
        result |= {name: logged.pop(name) for name in ("objective", "extra_forwards", "rows_trained")}
        result["passes"] = {name: logged.pop(name) for name in list(logged) if name.startswith("pass/")}
        result["logged"] = logged
        rows = {row.number: row for row in self.given(case)}
        given = [rows[number] for number in step.rows if number in rows]
        if not given:
            return result | {"largest": max(float(g.abs().max()) for g in step.gradients.values())}
        right = rollouts.wanted(step.weights, given, self.parameters(case), case.terms)
        metrics = {name: float(value) for name, value in right.metrics.items()}
        live = [row.number for row in given if any(a and m for a, m in zip(row.advantages, row.mask, strict=True))]
        filled = {row.number for row in given if any(row.mask)}
        # a pass of one dead row is one of a stand-in
        trained = {n for m in step.everywhere if len(m) > 1 or m[0] in live for n in m if n in filled}
        known = [row for row in given if row.number in {*step.before, *trained}]
        if (is_part := any(name.startswith("live/") for name in logged)):
            result["logged"] = {name.removeprefix("live/"): value for name, value in logged.items()}
        result |= {"trained": len(trained) / len(filled), "is_part": is_part}
        result["is_part_wanted"] = False
        if not (step.forwards == 0 and case.changes.get("actor.policy_loss.reuse_old_log_probs")):
            of_known = rollouts.wanted(step.weights, known, self.parameters(case), case.terms).metrics
            metrics = {name: float(value) for name, value in of_known.items()}
            result["is_part_wanted"] = len({row.number for row in known} & filled) < len(filled)
        return result | {
            "distance": rollouts.distance(step.gradients, right.gradients),
            "live": live,
            "nearly": [row.number for row in given if 0 < max(map(abs, row.advantages)) < 1e-12],
            "wanted": {"pg_loss": -right.objective, "loss": right.loss},
            "metrics": {name: value for name, value in metrics.items() if value == value},
            "missing": [] if case.terms.loss else rollouts.missing(right.metrics),
        }


# ------------------------------------------------------------ beside them


def two_passes(data: Rollouts) -> dict[str, Any]:
    """The pass that is trained with has logits a quarter larger than the one before it."""

    def larger(module: Any, args: Any, output: Any) -> Any:
        if torch.is_grad_enabled():
            output.logits = output.logits * 1.25
        return output

    case = Case(dynamic(32) | {"actor.policy_loss.skip_dead_rows": False}, "nested", said={"epochs": 2})
    found = data.watched(case)
    found.engine.module.register_forward_hook(larger)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        said = data.train(found, case)
    given = sorted((row for row in data.rows[False] if any(row.mask)), key=lambda row: (row.uid, row.session))
    before, second = (
        rollouts.wanted(found.steps[0].weights, given, data.budgets[False], Terms(temperature=t)) for t in (1, 0.8)
    )
    begun = {number for layout in recorded_worker.everyone(found.steps[0].layout) for number in layout[0]}
    theirs = torch.tensor([row.number in begun for row in given for kept in row.mask if kept])
    log_probs = torch.where(theirs, second.log_probs, before.log_probs)  # first micro-batches need no pass before
    old = torch.tensor([x for row in given for x, kept in zip(row.old, row.mask, strict=True) if kept]).double()
    first = replace(before, log_probs=log_probs, levels=rollouts.levels(log_probs - old, before, data.budgets[False]))
    apart = (first.log_probs - second.log_probs).abs()
    assert theirs.any() and (apart[~theirs] > 0).any()
    other = {
        key: rollouts.regimes(first.levels, key) != rollouts.regimes(second.levels, key) for key in first.levels.gated
    }
    strata = {stratum: torch.cat([other[key] for key in other if key[0] == stratum]) for stratum, _ in other}
    wanted = {"log_prob_difference": apart.mean(), "log_prob_difference_max": apart.max()}
    wanted["changed"] = torch.cat(list(other.values())).double().mean()
    wanted |= {f"changed/{stratum}": of.double().mean() for stratum, of in strata.items()}
    logged = {key.removeprefix("fibration/pass/"): v[0] for key, v in said.items() if key.startswith("fibration/pass/")}
    words = [str(one.message) for one in heard if "another regime" in str(one.message)]
    return {"logged": logged, "wanted": {name: value.item() for name, value in wanted.items()}, "warnings": words}


def dropping(data: Rollouts) -> dict[str, float]:
    """With dropout: gradients of the trained pass's log-probs on this rank, beside those of `op.loss` on all of them."""
    case = alone(GSPO, FIVE | {"model.override_config.attention_dropout": 0.2})
    found, own = data.watched(case), loss.Step.coefficients
    rows = case.part(data.carried(case))
    log_probs, gradients = (torch.zeros(len(rows), rollouts.LONGEST, dtype=torch.float64) for _ in range(2))

    def heard(step: loss.Step, log_prob: torch.Tensor) -> Any:
        assert step.rows is not None
        places, width = step.rows[:, None], torch.arange(log_prob.shape[1])
        log_probs[places, width] = log_prob.detach()

        def hook(gradient: torch.Tensor) -> None:
            gradients[places, width] = gradient

        log_prob.register_hook(hook)
        return own(step, log_prob)

    with patch.object(loss.Step, "coefficients", heard):
        data.train(found, case)

    def padded(name: str) -> torch.Tensor:
        each = [torch.tensor(getattr(row, name), dtype=torch.float64) for row in rows]
        return torch.stack([torch.nn.functional.pad(one, (0, rollouts.LONGEST - len(one))) for one in each])

    everywhere = [
        torch.cat(recorded_worker.everyone(one)) for one in (log_probs, *map(padded, ("mask", "old", "advantages")))
    ]
    now, mask, old, advantages = everywhere[0].requires_grad_(), everywhere[1].bool(), *everywhere[2:]
    op = rollouts.operator("gspo")
    op.loss(now, old, advantages[:, 0], op.index(mask=mask), data.parameters(case)).loss.backward()
    mine = slice(dist.get_rank() * len(rows), (dist.get_rank() + 1) * len(rows))
    wanted = now.grad[mine] * dist.get_world_size()  # FSDP takes the mean over ranks
    calm = [rollouts.log_probs(rollouts.model().double(), row)[0].detach() for row in rows]
    return {
        "error": float((gradients - wanted).abs().max() / wanted.abs().max()),
        "noise": max(float((now[: len(one)] - one).abs().max()) for now, one in zip(log_probs, calm, strict=True)),
        "forwards": found.steps[0].forwards,
    }


def sampled_now(data: Rollouts, otherwise: str = "") -> list[dict[str, Any]]:
    """Old log-probs that the worker computed itself, before the first of four mini-batches; or `otherwise`, which is one
    of `OTHERWISE`: then they are not those of the weights at hand."""
    reuse = {"actor.policy_loss.reuse_old_log_probs": True, "actor.optim.lr": 0.02}
    temperature = 0.75 if otherwise == "at another temperature" else 1.0
    said = {"mini_batch_size": 10, "epochs": 1 if otherwise else 2}
    case = Case(dynamic(32) | reuse, "nested", terms=Terms(temperature=temperature), said=said)
    found, mine = data.watched(case), spread(data.rows[False])
    given = rollouts.carried(mine, case.layout, case.dtype)
    tu.assign_non_tensor(given, temperature=1.0, compute_loss=False, calculate_entropy=False)
    computed = no_padding_2_padding(tu.get(found.worker.compute_log_prob(given), "log_probs"), given).tolist()
    sampled = [replace(row, old=old[: len(row.mask)]) for row, old in zip(mine, computed, strict=True)]
    if otherwise == "one row's of others":
        sampled = [row if row.number else replace(row, old=[x - 0.5 for x in row.old]) for row in sampled]
    if otherwise == "weights moved since":
        with torch.no_grad():
            next(iter(found.engine.module.parameters())).mul_(1.01)
    rows = sorted((row for part in recorded_worker.everyone(sampled) for row in part), key=lambda row: row.number)
    now = copy(data)
    now.rows = {False: rows}
    logged = now.train(found, case)
    return [now.judged(case, step, n, logged) for n, step in enumerate(found.steps)]


OTHERWISE = ("one row's of others", "weights moved since", "at another temperature")


def sampled_otherwise(data: Rollouts) -> dict[str, list[tuple[int, int]]]:
    """How many passes each mini-batch took, and takes at least."""
    return {how: [(step["forwards"], step["fewest"]) for step in sampled_now(data, how)] for how in OTHERWISE}


def other_losses(data: Rollouts) -> dict[str, Any]:
    """verl's own loss in our worker and in verl's: the gradients of both, and how often the first was entered."""
    plain = {"_target_": "verl.workers.config.PolicyLossConfig", "loss_mode": "vanilla"}
    plain |= dict.fromkeys(("hierarchy", "backend", "parameters"))
    case = Case(FIVE | {f"actor.policy_loss.{key}": value for key, value in plain.items()} | {"actor.clip_ratio": 0.1})
    data.watched(Case())
    ours, found = ActorRolloutRefWorker.actor_worker_cls, []
    for worker in (ours, TrainingWorker):
        with patch.object(ActorRolloutRefWorker, "actor_worker_cls", worker):
            found.append(data.watched(case))
            data.train(found[-1], case)
    one, other = (made.steps[0].gradients for made in found)
    return {
        "workers": [type(made.actor).__name__ for made in found],
        "forwards": [made.steps[0].forwards for made in found],
        "equal": all(torch.equal(one[name], other[name]) for name in one),
        "largest": max(float(g.abs().max()) for g in one.values()),
    }


def bypassed(data: Rollouts) -> dict[str, Any]:
    """The old policy is what sampled, in two mini-batches; and with one row of each excepted."""
    found, case = [], Case(FIVE | OF_THREE, terms=Terms(three=True))
    for shift in (0.0, 0.5):
        rows = [replace(row, rollout=[x - shift * (row.number % 10 == 2) for x in row.old]) for row in data.rows[False]]
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            data.watched(case).train(rollouts.carried(spread(rows), case.layout, case.dtype), mini_batch_size=10)
        found.append([str(one.message) for one in heard if "bypass_mode" in str(one.message)])
    return {"bypassed": found[0], "one row differs": found[1]}


def in_verls_log(data: Rollouts) -> dict[str, Any]:
    """What verl's trainer logs of an update of several mini-batches."""
    case = CASES["mini-batches, dynamic"]
    said = data.train(data.watched(case), case)
    return {"given": dict(said), "logged": reduce_metrics(rename_dict(said, "actor/"))}


# ------------------------------------------------------------ mistakes


def each_on_its_own(found: Watched, data: Rollouts, terms: Terms) -> Iterator[None]:
    """`op.loss` of every micro-batch."""

    def loss(model_output: Any, data: Any, dp_group: Any = None) -> Any:
        tensors = {
            k: data[k] for k in ("response_mask", "old_log_probs", "advantages", "rollout_is_weights") if k in data
        }
        dense = {key: t.to_padded_tensor(0.0) if t.is_nested else t for key, t in tensors.items()}
        op, mask = rollouts.operator(), dense["response_mask"].bool()
        at = op.index(mask=mask, prompt_group=list(data["uid"]), domain=list(data["data_source"]))
        log_probs = no_padding_2_padding(model_output["log_probs"], data)
        a = dense["advantages"] * (dense["rollout_is_weights"] if terms.weighted else 1)
        return op.loss(log_probs, dense["old_log_probs"], a, at, budgets).loss * data["dp_size"], {"actor/pg_loss": 0.0}

    budgets = data.budgets[False]
    found.actor.set_loss_fn(loss)
    yield


def in_the_window(change: Callable[[Any, dict[str, Any]], None]) -> Any:
    """What the worker says of a mini-batch is changed: `change(labels, keywords)`."""

    def planted(found: Watched, data: Rollouts, terms: Terms) -> Iterator[None]:
        from fibration.trainers.verl import worker

        def window(op: Any, mask: Any, old: Any, advantages: Any, labels: Any, **more: Any) -> Any:
            labels = dict(labels)
            weights = more.get("weights")
            change(labels, more)
            made = own(op, mask, old, advantages, labels, **more)
            if weights is not None and more["weights"] is None:
                inside = made.coefficients

                def behind(*args: Any, **kwargs: Any) -> Any:
                    coef = inside(*args, **kwargs)
                    return replace(coef, values=torch.where(made.mask, coef.values * weights, 0))

                made.coefficients = behind
            return made

        own = worker.Window
        with patch.object(worker, "Window", window):
            yield

    return planted


def in_the_loss(change: Callable[[torch.Tensor, Any, Watched], torch.Tensor]) -> Any:
    """What the policy loss returns is changed."""

    def planted(found: Watched, data: Rollouts, terms: Terms) -> Iterator[None]:
        from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

        own = POLICY_LOSS_REGISTRY["fibration"]

        def loss(**kwargs: Any) -> Any:
            value, metrics = own(**kwargs)
            return change(value, kwargs["config"], found), metrics

        with patch.dict(POLICY_LOSS_REGISTRY, {"fibration": loss}):
            yield

    return planted


def in_the_worker(name: str, method: Any) -> Any:
    """Another method in the place of one of our worker's."""

    def planted(found: Watched, data: Rollouts, terms: Terms) -> Iterator[None]:
        with patch.object(type(found.actor), name, method):
            yield

    return planted


def log_probs_of_others(self: Any, data: Any, rows: torch.Tensor) -> torch.Tensor:
    """Those of the other rows of the mini-batch in the place of a micro-batch's, before it is trained on."""
    return own_log_probs(self, data, len(data) - 1 - rows)


own_log_probs, own_rows = FibrationTrainingWorker._log_probs, FibrationTrainingWorker._rows


def of_another_size(found: Watched, data: Rollouts, terms: Terms) -> Iterator[None]:
    """An engine that says of its ranks that there is one, and has two in its group."""
    found.engine.get_data_parallel_size = lambda: 1
    yield


class Alone:
    """What a rank is to itself."""

    rank, size = 0, 1

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return [tensor]

    def all_gather_object(self, given: Any) -> list[Any]:
        return [given]


def other_rows(labels: dict[str, Any], more: dict[str, Any]) -> None:
    labels |= {stratum: [*of[1:], of[0]] for stratum, of in labels.items()}


def other_numbers(labels: dict[str, Any], more: dict[str, Any]) -> None:
    more["attributes"] = {name: values.nan_to_num(1.0).flip(0) for name, values in more["attributes"].items()}


def other_teacher(labels: dict[str, Any], more: dict[str, Any]) -> None:
    more["policies"] = {name: values.roll(1, 1) for name, values in more["policies"].items()}


WEIGHTED = CASES["weights, dynamic, nested"]
# Mistakes, the case that they are made in, and how many ranks it takes.
MISTAKES: dict[str, tuple[Any, Case, int]] = {
    "each micro-batch on its own": (each_on_its_own, CASES["fixed, nested"], 1),
    "each rank on its own": (each_on_its_own, Case({"actor.ppo_micro_batch_size_per_gpu": 10}), 2),
    "a group of one rank": (in_the_window(lambda labels, more: more.update(group=Alone())), WEIGHTED, 2),
    "ranks of another number": (of_another_size, Case(said={"mini_batch_size": 10}), 2),
    "weights behind the loss": (in_the_window(lambda labels, more: more.update(weights=None)), WEIGHTED, 1),
    "labels of other rows": (in_the_window(other_rows), CASES["dynamic, padded"], 1),
    "attributes of other rows": (in_the_window(other_numbers), CASES["rows alone, attributes of rows and tokens"], 1),
    "a teacher's log-probs of other tokens": (in_the_window(other_teacher), CASES["rows alone, a teacher"], 1),
    "log-probs of other rows": (in_the_worker("_log_probs", log_probs_of_others), CASES["fixed, padded"], 1),
    "rows in another order": (
        in_the_worker("_rows", lambda self, data: own_rows(self, data)[::-1]),
        CASES["dynamic, padded"],
        1,
    ),
    "divided by micro-batches": (in_the_loss(lambda loss, config, found: loss / 4), CASES["fixed, padded"], 1),
    "advantages of verl's": (
        in_the_worker("_with_advantages", lambda self, data: data),
        CASES["rewards and a reference"],
        1,
    ),
    "advantages of a mini-batch": (
        in_the_worker("train_mini_batch", TrainingWorker.train_mini_batch),
        CASES["rewards, mini-batches of parts of groups, dynamic"],
        1,
    ),
    "not times the ranks": (
        in_the_loss(lambda loss, config, found: loss / config.global_batch_info["dp_size"]),
        CASES["fixed, padded"],
        2,
    ),
}


def mistaken(data: Rollouts, name: str) -> dict[str, Any]:
    """How far gradients are off, or the error by which the mistake was found."""
    make, case, _ = MISTAKES[name]
    found = data.watched(case)
    with contextmanager(partial(make, found, data, case.terms))():
        try:
            data.train(found, case)
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}
    step = found.steps[0]
    rows = [row for row in data.given(case) if row.number in step.rows]
    right = rollouts.wanted(step.weights, rows, data.parameters(case), case.terms)
    return {"distance": rollouts.distance(step.gradients, right.gradients)}
