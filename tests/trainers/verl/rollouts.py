"""Rows of a rollout in verl's format, and the gradient of `op.loss` on all of them in one process.

The expected gradient uses no code of the plugin. Log-probs come from one forward pass per row, without padding, in
float64.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from tokenizers import Tokenizer, models
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from verl.utils import tensordict_utils as tu
from verl.workers.utils.padding import left_right_2_no_padding

import fibration
from fibration.runtime.index.index import Index
from fibration.runtime.metrics import Levels
from fibration.runtime.operator import Operator

PARTS = {"math": 0.8, "code": 1.3, "logic": 0.6}
LEVELS, CHANNELS = ("domain", "prompt_group", "trajectory"), "+-"
WORDS, LONGEST_PROMPT, LONGEST = 24, 4, 8
GROUPS = (("math", 4), ("math", 3), ("math", 2), ("code", 4), ("code", 2), ("logic", 3), ("logic", 2))  # 20 rows


@dataclass(frozen=True)
class Row:
    """One sequence; lists hold a value per token of the response."""

    number: int
    uid: str
    session: int
    source: str
    prompt: list[int]
    response: list[int]
    mask: list[int]
    advantages: list[float]
    shift: list[float]  # of the log-probs since it was sampled
    weights: list[float]  # of what sampled it, against what is trained
    old: list[float] = field(default_factory=list)
    ref: list[float] = field(default_factory=list)
    rollout: list[float] = field(default_factory=list)  # log-probs of what sampled
    rewards: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    teacher: list[float] = field(default_factory=list)  # log-probs of another frozen model
    entropy: list[float] = field(default_factory=list)  # of what the tokens were sampled from
    values: list[float] = field(default_factory=list)  # of a critic
    greedy: float = 0.0  # the reward of the greedy answer
    level: float = 1.0  # a number of its own, and that of its domain
    part: float = 1.0
    parts: tuple[float, float] = (0.0, 0.0)  # two rewards


def config() -> LlamaConfig:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaConfig(vocab_size=WORDS, max_position_embeddings=256, tie_word_embeddings=False, **sizes)


def model() -> LlamaForCausalLM:
    """Of weights that every process draws the same; logits differ enough for a policy to have something to lose."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = LlamaForCausalLM(config())
        with torch.no_grad():
            made.lm_head.weight.mul_(10)
    return made


def save(folder: Path) -> None:
    model().save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(WORDS)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0", eos_token="w1").save_pretrained(folder)


def rows(pieces: bool = False) -> list[Row]:
    """Off policy: domains, prompt groups, trajectories and tokens each moved; with `pieces`, a trajectory's turns are rows.

    A part of the tokens is a tool's, and one row is a tool's alone.
    """
    draw = random.Random(3)
    found: list[Row] = []
    of_domain = {source: draw.uniform(-0.2, 0.2) for source, _ in GROUPS}
    for group, (source, samples) in enumerate(GROUPS):
        of_group, prompt = (
            draw.uniform(-0.2, 0.2),
            [draw.randrange(2, WORDS) for _ in range(draw.randint(1, LONGEST_PROMPT))],
        )
        for sample in range(samples):
            n, of_row = draw.randint(1, LONGEST), draw.uniform(-0.3, 0.3)
            advantage = draw.uniform(-1.5, 1.5)
            found.append(
                Row(
                    number=len(found),
                    uid=f"prompt {group}",
                    session=sample // 2 if pieces else sample,
                    source=source,
                    prompt=prompt,
                    response=[draw.randrange(1, WORDS) for _ in range(n)],
                    mask=[int(draw.random() > 0.2) for _ in range(n)],
                    advantages=[advantage + 0.2 * draw.uniform(-1, 1) for _ in range(n)],
                    shift=[of_domain[source] + of_group + of_row + draw.uniform(-0.4, 0.4) for _ in range(n)],
                    weights=[draw.uniform(0.4, 1.8) for _ in range(n)],
                )
            )
    found[4] = replace(found[4], mask=[0] * len(found[4].mask))
    return with_log_probs(found)


def with_log_probs(given: list[Row]) -> list[Row]:
    """What they were sampled with, and what a reference model gives, from the weights now."""
    now = [log_probs(model().double(), row)[0].tolist() for row in given]
    draw, other = random.Random(4), random.Random(5)
    return [
        replace(
            row,
            old=[x - s for x, s in zip(xs, row.shift, strict=True)],
            ref=[x + draw.uniform(-0.3, 0.3) for x in xs],
            rollout=[x - s - draw.gauss(0, 0.15) for x, s in zip(xs, row.shift, strict=True)],
            rewards=(rewards := [round(draw.uniform(-0.5, 1.5), 1) * kept for kept in row.mask]),
            scores=rewards,
            teacher=[min(x + other.uniform(-1, 1), -1e-3) for x in xs],
            entropy=[other.expovariate(1) for _ in xs],
            values=[other.uniform(-1, 1) for _ in xs],
            greedy=other.uniform(-1, 1),
            level=other.uniform(0.5, 2),
            part=PARTS[row.source],
            parts=(other.choice((0.0, 1.0)), other.uniform(0, 2)),
        )
        for row, xs in zip(given, now, strict=True)
    ]


def padding(number: int, uid: str = "pad0") -> Row:
    """As verl fills up a batch: the source of another row, an uid of its own, and a response that is masked."""
    nan, zero = [float("nan")], [0.0]
    return Row(
        number,
        uid,
        number,
        "math",
        [1] * 3,
        [1],
        [0],
        nan,
        zero,
        nan,
        old=nan,
        ref=zero,
        rollout=nan,
        rewards=zero,
        scores=zero,
        teacher=nan,
        entropy=nan,
        values=nan,
        greedy=float("nan"),
        level=float("nan"),
        part=float("nan"),
        parts=(float("nan"),) * 2,
    )


def log_probs(policy: nn.Module, row: Row, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """`log π` of the response's tokens, and the entropies of what they were drawn from: [T] each."""
    ids = torch.tensor([row.prompt + row.response])
    logits = policy(input_ids=ids, use_cache=False).logits[0, len(row.prompt) - 1 : -1] / temperature
    every = logits.log_softmax(-1)
    return every.gather(1, torch.tensor(row.response)[:, None])[:, 0], -(every.exp() * every).sum(-1)


# ------------------------------------------------------------ as verl carries them


def carried(given: Sequence[Row], layout: str, dtype: torch.dtype, weighted: bool = False) -> TensorDict:
    data = {"padded": padded, "nested": nested}[layout](given, dtype)
    return data if weighted else data.exclude("rollout_is_weights")


def padded(given: Sequence[Row], dtype: torch.dtype) -> TensorDict:
    """Prompts padded on the left, responses on the right; then as the trainer of verl's v0 sends it to its workers."""
    ids, attention, values = [], [], {key: [] for key in ("response_mask", *PER_TOKEN)}
    for row in given:
        left, right = LONGEST_PROMPT - len(row.prompt), LONGEST - len(row.response)
        ids.append([0] * left + row.prompt + row.response + [0] * right)
        attention.append([0] * left + [1] * (len(row.prompt) + len(row.response)) + [0] * right)
        for key, value in per_token(row).items():
            values[key].append([*value, *[0] * right])
    inputs, seen = torch.tensor(ids), torch.tensor(attention)
    tensors = {key: torch.tensor(value, dtype=dtype if key in PER_TOKEN else None) for key, value in values.items()}
    tensors |= {"input_ids": inputs, "attention_mask": seen, "position_ids": (seen.cumsum(1) - 1).clamp(min=0)}
    tensors |= {"prompts": inputs[:, :LONGEST_PROMPT], "responses": inputs[:, LONGEST_PROMPT:]}
    return left_right_2_no_padding(tu.get_tensordict(tensors | labels(given)))


def nested(given: Sequence[Row], dtype: torch.dtype) -> TensorDict:
    """Rows of their own lengths, as the trainer of verl's v1 keeps them."""
    fields: dict[str, list[Tensor]] = {}
    for row in given:
        values = per_token(row) | {"prompts": row.prompt, "responses": row.response}
        values |= {"input_ids": row.prompt + row.response, "position_ids": range(len(row.prompt + row.response))}
        values["loss_mask"] = values["response_mask"]
        for key, value in values.items():
            fields.setdefault(key, []).append(torch.tensor(list(value), dtype=dtype if key in PER_TOKEN else None))
        by_verl = [0.0] * (len(row.prompt) - 1) + list(row.teacher) + [0.0]  # of the token after each, in one column
        fields.setdefault("teacher_logprobs", []).append(torch.tensor(by_verl, dtype=dtype)[:, None])
    tensors = {key: torch.nested.as_nested_tensor(value, layout=torch.jagged) for key, value in fields.items()}
    return tu.get_tensordict(tensors | labels(given))


PER_TOKEN = {"old_log_probs": "old", "advantages": "advantages", "ref_log_prob": "ref", "rollout_is_weights": "weights"}
PER_TOKEN |= {"rollout_log_probs": "rollout", "token_level_rewards": "rewards", "token_level_scores": "scores"}
PER_TOKEN |= {"teacher_log_probs": "teacher", "entropy": "entropy", "values": "values"}


def per_token(row: Row) -> dict[str, Any]:
    return {"response_mask": row.mask} | {key: getattr(row, name) for key, name in PER_TOKEN.items()}


def labels(given: Sequence[Row]) -> dict[str, Any]:
    """Per row; `row` is the tests' own, and tells which rows an optimizer step was given."""
    said: dict[str, Any] = {"uid": [row.uid for row in given], "data_source": [row.source for row in given]}
    said |= {"level": torch.tensor([row.level for row in given], dtype=torch.float64)}
    said |= {"reward_baselines": torch.tensor([row.greedy for row in given], dtype=torch.float64)}
    said |= {"part": [row.part for row in given]}
    extra = [{"reward_extra_info": dict(zip(("right", "brief"), row.parts, strict=True))} for row in given]
    said |= {"extra_fields": extra, "brief": [row.parts[1] for row in given]}
    return said | {"session_id": [row.session for row in given], "row": torch.tensor([row.number for row in given])}


# ------------------------------------------------------------ what is right


@dataclass(frozen=True)
class Terms:
    """What a step's loss is made of, beside the hierarchy's objective."""

    weighted: bool = False
    kl: float = 0.0
    entropy: float = 0.0
    temperature: float = 1.0
    three: bool = False  # the hierarchy reads what sampled
    hierarchy: str = ""  # one that makes advantages of rewards
    loss: str = ""  # another hierarchy, with verl's advantages


@dataclass(frozen=True)
class Wanted:
    gradients: dict[str, Tensor]
    objective: float
    loss: float  # -J, with the KL and entropy terms
    metrics: dict[str, Any]
    log_probs: Tensor  # of the unmasked tokens
    levels: Levels
    index: Index


def compared(given: Sequence[Row], hierarchy: str) -> list[Row]:
    """The rows with the advantages that a hierarchy makes of the rewards of all of them, which is held elsewhere."""
    used = [row for row in given if any(row.mask)]
    op = operator(hierarchy)
    mask = torch.tensor([kept for row in used for kept in row.mask], dtype=torch.bool)
    offsets = torch.tensor([0, *(len(row.mask) for row in used)]).cumsum(0)
    at = op.index(
        offsets=offsets,
        mask=mask,
        attributes=attributes_of(op, used, used),
        **of_strata(op, [row.uid for row in used], [row.source for row in used]),
    )
    rewards = [row.rewards if hierarchy in (TO_GO, "ppo_gae") else [sum(row.rewards)] for row in used]
    known = {
        name: torch.tensor([x for row in used for x in getattr(row, name)], dtype=torch.float64)
        for name in ("old", "teacher")
        if name in op.hierarchy.policies
    }
    given_rewards = torch.tensor([x for row in rewards for x in row], dtype=torch.float64)
    made = op.advantages(given_rewards, at, policies=known).tolist()
    per_token = len(made) != len(used)
    values = iter(made)
    found = {row.number: [next(values) for _ in (row.mask if per_token else [0])] for row in used}
    return [
        replace(
            row, advantages=(a if per_token else a * len(row.mask)) if (a := found.get(row.number)) else row.advantages
        )
        for row in given
    ]


def attributes_of(op: Operator, rows: Sequence[Row], trajectories: Sequence[Row]) -> dict[str, Any]:
    """The numbers that an index takes: of the tokens of rows, of trajectories and of domains."""
    entropies, values = ([x for row in rows for x in getattr(row, name)] for name in ("entropy", "values"))
    known = {
        "entropy": torch.tensor(entropies, dtype=torch.float64),
        "value": torch.tensor(values, dtype=torch.float64),
        "greedy_reward": [row.greedy for row in trajectories],
        "difficulty": [row.level for row in trajectories],
        "part": PARTS,
        "reward_1": [row.parts[0] for row in trajectories],
        "reward_2": [row.parts[1] for row in trajectories],
    }
    return {name: known[name] for name in op.hierarchy.attributes}


def of_strata(op: Operator, uids: list[str], sources: list[str]) -> dict[str, list[str]]:
    """The labels that the hierarchy takes."""
    strata = {stratum.name for stratum in (*op.hierarchy.order, *op.hierarchy.groups)}
    return {name: of for name, of in {"prompt_group": uids, "domain": sources}.items() if name in strata}


def wanted(weights: dict[str, Tensor], given: Sequence[Row], parameters: dict[str, Any], terms: Terms) -> Wanted:
    """By `op.loss` on the whole mini-batch in one process, through the model in one backward pass, in float64."""
    policy = model().double()
    policy.load_state_dict(weights)
    given = sorted((row for row in given if any(row.mask)), key=lambda row: (row.uid, row.session, row.number))
    found = [log_probs(policy, row, terms.temperature) for row in given]
    keys = [(row.uid, row.session) for row in given]
    first = [n for n, key in enumerate(keys) if n == 0 or keys[n - 1] != key]  # of each trajectory's rows
    ends = torch.tensor([0, *(len(row.mask) for row in given)]).cumsum(0)
    offsets = torch.stack([ends[n] for n in first] + [ends[-1]])
    op = operator(terms.hierarchy or terms.loss or (THREE if terms.three else "fiberpo_domain"))
    mask = torch.tensor([kept for row in given for kept in row.mask], dtype=torch.bool)
    labels = of_strata(op, [given[n].uid for n in first], [given[n].source for n in first])
    at = op.index(offsets=offsets, mask=mask, attributes=attributes_of(op, given, [given[n] for n in first]), **labels)

    def tokens(name: str) -> Tensor:
        return torch.tensor([x for row in given for x in getattr(row, name)], dtype=torch.float64)

    now, entropy = (torch.cat(part) for part in zip(*found, strict=True))
    advantages = tokens("advantages") * (tokens("weights") if terms.weighted else 1)
    policies = {"rollout": tokens("rollout"), "reference": tokens("ref"), "teacher": tokens("teacher")}
    policies = {name: of for name, of in policies.items() if name in op.hierarchy.policies}
    result = op.loss(now, tokens("old"), advantages, at, parameters, policies=policies)
    behind = tokens("ref") - now
    k3 = (behind.exp() - behind - 1)[mask].mean()
    loss = result.loss + terms.kl * k3 - terms.entropy * entropy[mask].mean()
    loss.backward()
    gradients = {name: p.grad for name, p in policy.named_parameters()}
    now = now.detach()
    levels = op.levels(now - tokens("old"), at, parameters, advantages=advantages)
    return Wanted(gradients, -result.loss.item(), loss.item(), result.metrics, now[mask], levels, at)


THREE = f"{Path(__file__).parents[2] / 'three_policy_losses.py'}:of_three"
REWARDS, TO_GO, TAUGHT, MEASURED = (
    f"{Path(__file__).parent / 'spec.py'}:{name}" for name in ("of_rewards", "to_go", "taught", "measured")
)


def operator(hierarchy: str = "fiberpo_domain") -> Operator:
    return fibration.compile(fibration.load(hierarchy), backend="torch")


def levels(log_ratio: Tensor, of: Wanted, parameters: dict[str, Any]) -> Levels:
    """With other log-ratios of its unmasked tokens."""
    found = torch.zeros(of.index.shape, dtype=torch.float64)
    found[of.index.positions] = log_ratio
    return operator().levels(found, of.index, parameters)


def narrow(given: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Budgets with which elements of every level and channel pass, are rolled back and zeroed.

    An element of middling drift overspends its budget by half of its rollback: some pass then, and others are zeroed.
    """
    found = wanted(model().double().state_dict(), given, {}, Terms())
    chosen: dict[str, dict[str, float]] = {}
    for (level, channel), residual in found.levels.residual.items():
        if level in found.index.leaves:
            continue
        drift = residual.abs()
        there = drift.argsort()[-int((drift > 1e-9).sum()) :]  # what alone has a parent deviates by nothing
        middle = int(there[len(there) // 2])
        tokens = float(found.index.count("token", level)[middle])
        over = 1 + 0.5 / tokens if channel == "+" or len(there) > 2 else 3.0
        chosen.setdefault(f"C_{level}", {})[channel] = float(drift[middle]) / over
    return chosen


def missing(metrics: dict[str, Any]) -> list[str]:
    """The regimes in which no element is, of every level and channel, and of tokens."""
    met = [
        f"{level}/{c}/{regime}" for level in LEVELS for c in CHANNELS for regime in ("passed", "rolled_back", "zeroed")
    ]
    met += [f"token/{c}/{regime}" for c in CHANNELS for regime in ("passed", "limited")]
    return [name for name in met if not float(metrics[name]) > 0]


def regimes(found: Levels, key: tuple[str, str]) -> Tensor:
    """0 where a gate returned what it read, 1 where it returned 0, 2 otherwise."""
    read, gave = found.residual[key], found.gated[key]
    return torch.where(gave == read, 0, torch.where(gave == 0, 1, 2))


def distance(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Of the whole gradients, relative to the expected one."""
    assert found.keys() == expected.keys()
    apart = sum(float((found[k].double() - e).square().sum()) for k, e in expected.items())
    return (apart / sum(float(e.square().sum()) for e in expected.values())) ** 0.5
