"""Records a trainer of TRL: the gradient of each optimizer step, beside that of `op.loss` on the whole window.

The expected gradient uses no code of the trainer. The rows of a window are copied when they are generated. Labels come
from the rows of the dataset. Log-probs come from a forward pass over whole rows, padded on the right.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback

DOMAINS = ("algebra", "code", "logic", "maps")
PARTS = (0.8, 1.1, 1.3, 0.6)  # a number of each domain
LEVELS, CHANNELS = ("domain", "prompt_group", "trajectory"), "+-"
WORDS = [f"w{n}" for n in range(28)]
LONGEST = 8


def tokenizer() -> PreTrainedTokenizerFast:
    words = ["<pad>", "<end>", "<unk>", *WORDS]
    made = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "eos_token": "<end>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, padding_side="left", **special)


def model(
    dtype: torch.dtype = torch.float64, seed: int = 0, words: int = 3 + len(WORDS), **config: Any
) -> LlamaForCausalLM:
    """Two layers, and logits that differ enough for a policy to have something to lose."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = LlamaForCausalLM(LlamaConfig(vocab_size=words, max_position_embeddings=64, **sizes, **config))
        with torch.no_grad():
            made.lm_head.weight.mul_(20)
    return made.to(dtype)


def teacher(dtype: torch.dtype = torch.float64) -> LlamaForCausalLM:
    return model(dtype, seed=7)


def level(line: int) -> float:
    """A number of a line of the dataset."""
    return 0.5 + line % 7 / 4


def lines(number: int) -> list[dict[str, Any]]:
    """Prompts of one to four words, one domain after another."""
    draw = random.Random(5)
    texts: list[str] = []
    while len(texts) < number:
        text = " ".join(draw.choices(WORDS, k=draw.randint(1, 4)))
        texts += [text] if text not in texts else []
    return [
        {"prompt": text, "domain": DOMAINS[n % 4], "line": n, "level": level(n), "part": PARTS[n % 4]}
        for n, text in enumerate(texts)
    ]


LINES = {line["prompt"]: line["line"] for line in lines(64)}


def reward(prompts: Sequence[str], completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    """Of even tokens more than of odd ones, and of long completions a little more than of short ones."""
    return [sum(n % 2 == 0 for n in ids) / len(ids) + 0.05 * len(ids) for ids in completion_ids]


def equal(prompts: Sequence[str], completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    """As above, but the same for all completions of every other prompt of a domain."""
    values = zip(prompts, reward(prompts, completion_ids), strict=True)
    return [0.5 if LINES[text] // 4 % 2 else value for text, value in values]


def all_equal(prompts: Sequence[str], completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    return [0.5] * len(prompts)


def sometimes(prompts: Sequence[str], completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float | None]:
    """None for the first completion of every prompt that comes after another."""
    firsts = [text != prompts[n - 1] for n, text in enumerate(prompts)]
    values = zip(firsts, reward(prompts, completion_ids), strict=True)
    return [None if n and first else value for n, (first, value) in enumerate(values)]


def brevity(prompts: Sequence[str], completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    """A second reward, which the first does not decide."""
    return [1 / len(ids) + 0.1 * (ids[0] % 3) for ids in completion_ids]


class Rollouts:
    """Completions drawn at random, of 1 to 8 tokens, some of which do not end; and what an engine says of them.

    `holes`: tokens of tools between the model's, and one row of nothing else. `endless`: on the last rank none ends.
    `unknown`: some tokens have no log-prob. `teaches`: a field has log-probs of another policy.
    """

    def __init__(
        self,
        words: PreTrainedTokenizerFast,
        holes: bool = False,
        endless: bool = False,
        unknown: bool = False,
        teaches: bool = False,
    ) -> None:
        self.teaches = teaches
        self.words, self.holes, self.unknown, self.draw = words, holes, unknown, random.Random(rank())
        self.ends = not endless or rank() < len(everyone(0)) - 1

    def __call__(self, prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        said: dict[str, Any] = {
            "prompt_ids": [self.words(text)["input_ids"] for text in prompts],
            "completion_ids": [self.completion() for _ in prompts],
        }
        rows = [Row(0, 0, (0, 0), 0, *ids, [], 0.0, None, None, None) for ids in zip(*said.values(), strict=True)]
        with torch.no_grad():
            likely, _ = scores(trainer.policy, rows, trainer.temperature)
        said["logprobs"] = [[float(v) + self.draw.gauss(0, 0.3) for v in values] for values in likely]
        if self.teaches:
            said["taught"] = [[-self.draw.expovariate(1) for _ in ids] for ids in said["completion_ids"]]
        if self.unknown:
            said["logprobs"] = [[None if n % 3 == 2 else v for n, v in enumerate(row)] for row in said["logprobs"]]
        if self.holes:
            said["env_mask"] = [[int(self.draw.random() > 0.3) for _ in ids] for ids in said["completion_ids"]]
            said["env_mask"][0] = [0] * len(said["completion_ids"][0])
        return said

    def completion(self) -> list[int]:
        ids = [self.draw.randrange(3, 3 + len(WORDS)) for _ in range(self.draw.randint(1, LONGEST - 1))]
        return ids + [1] * (self.draw.random() > 0.3 and self.ends)


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def everyone(mine: Any) -> list[Any]:
    """What all ranks have, in their order."""
    if not dist.is_initialized():
        return [mine]
    given = [None] * dist.get_world_size()
    dist.all_gather_object(given, mine)
    return given


@dataclass
class Row:
    """One sampled sequence as it was generated. Lists hold a value per token of the completion."""

    line: int
    part: int  # the slice of its generation
    batch: tuple[int, int]  # the micro-batch: its rank, and where it stands in the window
    start: int  # the prompt's first position, after its padding
    prompt: list[int]
    completion: list[int]
    mask: list[bool]
    advantage: float | list[float]
    old: list[float] | None
    weights: list[float] | None
    reward: float | None  # as TRL keeps it, in float32
    rollout: list[float] | None = None  # NaN where the engine knows none
    brevity: float = 0.0  # the second reward
    entropy: list[float] | None = None  # of what sampled
    teacher: list[float] | None = None

    @property
    def advantages(self) -> list[float]:
        """Of every token."""
        return self.advantage if isinstance(self.advantage, list) else [self.advantage] * len(self.mask)


def rows_of(given: dict[str, Any], part: int, number: int = 0) -> list[Row]:
    """The rows of one slice, without their padding; those that are masked as a whole have no token left."""
    ids, prompts = given["completion_ids"], given["prompt_mask"].bool()
    there = given["completion_mask"].bool()
    unmasked = there & given["tool_mask"].bool() if "tool_mask" in given else there

    def tokens(name: str, n: int) -> list[float] | None:
        return given[name].expand(ids.shape)[n][there[n]].tolist() if name in given else None

    made = given["compared" if "compared" in given else "advantages"]
    return [
        Row(
            line=line,
            part=part,
            batch=(rank(), number),
            start=int((~prompts[n]).sum()),
            prompt=given["prompt_ids"][n][prompts[n]].tolist(),
            completion=ids[n][there[n]].tolist(),
            mask=unmasked[n][there[n]].tolist(),
            advantage=made[n][there[n]].tolist() if made.ndim == 2 else float(made[n]),
            old=tokens("old_per_token_logps", n),
            weights=tokens("importance_sampling_ratio", n),
            reward=None if (value := given["reward"][n]).isnan() else float(value),
            rollout=tokens("sampling_per_token_logps", n),
            brevity=float(given["brevity"][n]),
            entropy=tokens("entropy_then", n),
            teacher=tokens("teacher_then", n),
        )
        for n, line in enumerate(given["line"].tolist())
    ]


def scores(policy: nn.Module, rows: Sequence[Row], temperature: float) -> tuple[list[Tensor], list[Tensor]]:
    """Log-probs of every token of each row's completion, and entropies of what could have been there.

    Rotations depend on a position by their rounding, in float32 too.
    """
    texts = [torch.tensor(row.prompt + row.completion) for row in rows]
    ids = nn.utils.rnn.pad_sequence(texts, batch_first=True)
    at = torch.arange(ids.shape[1]) + torch.tensor([[row.start] for row in rows])
    logits = policy(input_ids=ids, attention_mask=torch.ones_like(ids), position_ids=at).logits[:, :-1]
    likely = (logits / temperature).log_softmax(-1)
    both = likely.gather(-1, ids[:, 1:, None])[..., 0], -(likely.exp() * likely).sum(-1)
    cuts = [slice(len(row.prompt) - 1, len(row.prompt) - 1 + len(row.completion)) for row in rows]
    said, entropies = ([values[n, cut] for n, cut in enumerate(cuts)] for values in both)
    return said, entropies


def of_reference(first: nn.Module, rows: Sequence[Row], temperature: float) -> Tensor:
    with torch.no_grad():
        said, _ = scores(first, rows, temperature)
    return torch.cat([v[torch.tensor(row.mask)] for v, row in zip(said, rows, strict=True)])


def attributes_of(op: Any, rows: Sequence[Row]) -> dict[str, Any]:
    """The numbers that an index of these rows takes, of their unmasked tokens."""
    known: dict[str, Any] = {
        "difficulty": [level(row.line) for row in rows],
        "part": dict(zip(DOMAINS, PARTS, strict=True)),
        "reward_1": [row.reward for row in rows],
        "reward_2": [row.brevity for row in rows],
    }
    if "entropy" in op.hierarchy.attributes:
        known["entropy"] = unmasked(rows, [row.entropy for row in rows])
    return {name: known[name] for name in op.hierarchy.attributes}


def unmasked(rows: Sequence[Row], each: Sequence[Any]) -> Tensor:
    tensors = (torch.as_tensor(v, dtype=torch.float64) for v in each)
    return torch.cat([v[torch.tensor(row.mask)] for v, row in zip(tensors, rows, strict=True)])


def compared(
    op: Any,
    rows: Sequence[Row],
    policy: nn.Module,
    first: nn.Module,
    temperature: float,
    parameters: dict[str, Any],
) -> dict[Any, Any]:
    """Advantages of all rows that were sampled together, by their texts; 0 of those without a reward or a token. One per
    row, or a list of one per token.

    `policy`: what sampled them.
    """
    used = [row for row in rows if any(row.mask) and row.reward is not None]
    with torch.no_grad():
        old, _ = scores(policy, used, temperature)
    cut = torch.tensor([0, *(sum(row.mask) for row in used)]).cumsum(0)
    labels = {"prompt_group": [row.line for row in used], "domain": [DOMAINS[row.line % 4] for row in used]}
    known = map(str, (*op.hierarchy.strata, *op.hierarchy.groups))
    index = op.index(offsets=cut, attributes=attributes_of(op, used), **{k: labels[k] for k in known if k in labels})
    policies = {}
    if "teacher" in op.hierarchy.policies:
        policies["teacher"] = unmasked(used, [row.teacher for row in used])
    if "reference" in op.hierarchy.policies:
        policies["reference"] = of_reference(first, used, temperature)
    if "old" in op.hierarchy.policies:
        policies["old"] = torch.cat([v[torch.tensor(row.mask)] for v, row in zip(old, used, strict=True)])
    made = op.advantages(torch.tensor([row.reward for row in used]), index, parameters, policies=policies)
    if len(made) == len(used):
        return {text(row): float(a) for row, a in zip(used, made, strict=True)}
    of_tokens = iter(made.tolist())
    return {text(row): [next(of_tokens) if kept else 0.0 for kept in row.mask] for row in used}


def is_live(row: Row) -> bool:
    weights = row.weights or [1.0] * len(row.mask)
    return any(m and a * w for m, a, w in zip(row.mask, row.advantages, weights, strict=True))


def is_filled(row: Row) -> bool:
    return any(row.mask)


def text(row: Row) -> tuple[int, tuple[int, ...]]:
    return row.line, tuple(row.completion)


@dataclass
class Expected:
    """What `op.loss` says of one window, with the policy as it is."""

    gradient: list[Tensor]
    value: float
    metrics: dict[str, float]
    differs: float  # how far log-probs are from those that sampled, in nats


def expected(
    op: Any,
    policy: nn.Module,
    rows: Sequence[Row],
    parts: list[int] | None,
    parameters: dict[str, Any],
    temperature: float,
    scale: float = 1.0,
    reference: tuple[nn.Module, float] | None = None,
    bonus: float = 0.0,
    first: nn.Module | None = None,
    said: tuple[list[Tensor], list[Tensor]] | None = None,
) -> Expected:
    """In one backward pass over the rows of all ranks.

    `parts`: the slices that are trained on, where the window has others too, and `scale`: of their part of the objective.
    Where it is None, `reference`: a model, and the factor of the divergence from it that is added, summed over tokens;
    and `bonus`: the factor of a micro-batch's mean entropy, averaged over these. `first`: what hierarchies read as the
    reference. `said`: log-probs and entropies of a forward pass, as `scores` returns them; its own by default.
    """
    said = said or scores(policy, rows, temperature)
    used = [n for n, row in enumerate(rows) if any(row.mask)]
    rows, said = [rows[n] for n in used], ([said[0][n] for n in used], [said[1][n] for n in used])
    if not rows:
        return Expected([torch.zeros_like(p) for p in policy.parameters()], 0.0, {}, 0.0)
    masks = [torch.tensor(row.mask) for row in rows]
    now, entropies = ([v[kept] for v, kept in zip(s, masks, strict=True)] for s in said)
    cut = torch.tensor([0, *map(len, now)]).cumsum(0)

    def joined(values: Callable[[Row], Any]) -> Tensor:
        each = [torch.tensor(values(row), dtype=now[0].dtype)[kept] for row, kept in zip(rows, masks, strict=True)]
        return torch.cat(each)

    new = torch.cat(now)
    fresh = rows[0].old is None
    old = new.detach() if fresh else joined(lambda row: row.old)
    advantages = joined(
        lambda row: [a * w for a, w in zip(row.advantages, row.weights or [1.0] * len(row.mask), strict=True)]
    )
    labels = {"prompt_group": [row.line for row in rows], "domain": [DOMAINS[row.line % 4] for row in rows]}
    strata = {stratum.name for stratum in (*op.hierarchy.order, *op.hierarchy.groups)}
    index = op.index(
        offsets=cut, attributes=attributes_of(op, rows), **{k: v for k, v in labels.items() if k in strata}
    )
    policies = {}
    if "teacher" in op.hierarchy.policies:
        policies["teacher"] = joined(lambda row: row.teacher)
    if "reference" in op.hierarchy.policies:
        assert first is not None
        policies["reference"] = of_reference(first, rows, temperature)
    if "rollout" in op.hierarchy.policies:
        sampled = joined(lambda row: row.rollout)
        policies["rollout"] = sampled.where(~sampled.isnan(), old)
    whole = op.loss(new, old, advantages, index, parameters, policies=policies)
    value = loss = whole.loss
    if parts is not None:
        times = torch.cat([torch.full((len(v),), parts.count(row.part)) for v, row in zip(now, rows, strict=True)])
        coef = op.coefficients(new.detach(), old, advantages, index, parameters, policies=policies).values
        loss = -(coef * new * times).sum() * scale
    if reference is not None:
        other, factor = reference
        with torch.no_grad():
            referred, _ = scores(other, rows, temperature)
        theirs = torch.cat([v[kept] for v, kept in zip(referred, masks, strict=True)])
        apart = ((theirs - new).exp() - (theirs - new) - 1).sum() * factor
        value, loss = value + apart, loss + apart
    if bonus:
        batches: dict[tuple[int, int], list[Tensor]] = {}
        for row, entropy in zip(rows, entropies, strict=True):
            batches.setdefault(row.batch, []).append(entropy)
        mean = torch.stack([torch.cat(each).mean() for each in batches.values()]).mean()
        value, loss = value - bonus * mean, loss - bonus * mean
    gradient = torch.autograd.grad(loss, list(policy.parameters()))
    metrics = {name: float(metric) for name, metric in whole.metrics.items()}
    return Expected(list(gradient), float(value.detach()), metrics, float((new - old).abs().max().detach()))


def distance(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """Of whole gradients, relative to the one that is wanted where that is not 0."""
    difference = sum(float((f - w).detach().double().pow(2).sum()) for f, w in zip(found, wanted, strict=True))
    return (difference / (sum(float(w.detach().double().pow(2).sum()) for w in wanted) or 1.0)) ** 0.5


@dataclass
class Update:
    """What one optimizer step did, and how far it is from what it should be."""

    fresh: bool
    error: float
    value: float
    value_error: float
    forwards: int  # of the policy, beside one per micro-batch
    micro_batches: int
    rows: tuple[int, int, int]  # in trained passes, those with an advantage and at least one in each pass, and all
    differs: float
    metrics: dict[str, float]
    logged: dict[str, float]  # the trainer's other numbers since it last logged
    metrics_error: float
    trained: tuple[int, int]  # rows with tokens: live ones, or all where something reads them; and all
    is_part: bool  # whether metrics cover the trained rows alone
    missing: list[str] = field(default_factory=list)


class Look(TrainerCallback):
    """Looks at gradients when all of a window is in them, and before they are used."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        self.trainer.look()


def watched(trainer: type) -> type:
    """The trainer with a memory of its own."""

    class Watched(trainer):  # type: ignore[misc]
        def __init__(
            self, *given: Any, op: Any, budgets: dict[str, Any], of_generations: bool, noisy: bool, **more: Any
        ) -> None:
            self.op, self.budgets, self.of_generations, self.noisy = op, budgets, of_generations, noisy
            self.updates: list[Update] = []
            self.evaluations: list[tuple[float, float]] = []
            self.generation: list[dict[str, Any]] = []
            self.generations = self.since = self.forwards = 0
            self.counting, self.version = False, -1
            self.window: list[int] = []
            self.passes: list[
                tuple[Tensor, Any, Any, Any]
            ] = []  # before each trained pass: the state of random numbers
            self.values: list[float] = []
            super().__init__(*given, **more)
            self.add_callback(Look(self))
            self.model.register_forward_pre_hook(self.count, with_kwargs=True)
            self.passed: list[tuple[int, tuple[int, ...]]] = []  # of trained passes, by slice
            self.first = copy.deepcopy(self.model.state_dict())

        def count(self, module: nn.Module, given: Any, named: dict[str, Any]) -> None:
            self.forwards += self.counting
            if self.counting and torch.is_grad_enabled():
                texts = zip(named["input_ids"], named["attention_mask"].bool(), strict=True)
                self.passed += [(self.window[-1], tuple(ids[there].tolist())) for ids, there in texts]

        def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
            counting, self.counting = self.counting, False
            found = super()._generate_and_score_completions(inputs)
            self.generations += 1
            found["line"] = torch.tensor([x.get("line", LINES[x["prompt"]]) for x in inputs])
            ids = [row[row != 0].tolist() for row in found["completion_ids"]]
            said = self.reward_funcs[0](prompts=[x["prompt"] for x in inputs], completion_ids=ids)
            found["reward"] = torch.tensor([float("nan") if value is None else value for value in said])
            found["brevity"] = torch.tensor(brevity(prompts=[], completion_ids=ids))
            self.keep(found, inputs)
            if self.op.hierarchy.advantages is not None:
                self.compare(found)
            self.counting = counting
            return found

        def keep(self, found: dict[str, Any], inputs: list[dict[str, Any]]) -> None:
            """What a hierarchy may read of the moment of sampling: entropies, and log-probs of a teacher."""
            rows, width = rows_of(found, 0), found["completion_ids"].shape[1]

            def placed(each: Sequence[Any]) -> Tensor:
                lists = zip(
                    (torch.as_tensor(v, dtype=torch.float64) for v in each),
                    found["completion_mask"].any(1),
                    strict=True,
                )
                return torch.stack([nn.functional.pad(v * there, (0, width - len(v))) for v, there in lists])

            with torch.no_grad():
                if "entropy" in self.op.hierarchy.attributes:
                    found["entropy_then"] = placed(scores(self.policy, rows, self.temperature)[1])
                if "teacher" in self.op.hierarchy.policies:
                    own = "taught" not in inputs[0]
                    said = scores(teacher(self.policy.dtype), rows, self.temperature)[0] if own else []
                    found["teacher_then"] = placed(said if own else [x["taught"] for x in inputs])

        @property
        def start(self) -> Any:
            """The model as it was before the first step."""
            return model(self.policy.dtype)

        def compare(self, found: dict[str, Any]) -> None:
            """Advantages as they should be, beside those that the trainer made."""
            rows = [row for theirs in everyone(rows_of(found, 0)) for row in theirs]
            made = compared(self.op, rows, self.policy, self.start, self.temperature, self.budgets)
            mine = [made.get(text(row), 0.0) if row.reward is not None else 0.0 for row in rows_of(found, 0)]
            if not any(isinstance(a, list) for a in mine):
                found["compared"] = torch.tensor(mine, dtype=torch.float64)
                return
            found["compared"] = torch.zeros(found["completion_ids"].shape, dtype=torch.float64)
            for n, a in enumerate(mine):
                if isinstance(a, list):
                    found["compared"][n, : len(a)] = torch.tensor(a, dtype=torch.float64)

        def _prepare_inputs(self, batch: Any) -> Any:
            before = self.generations
            given = super()._prepare_inputs(batch)
            if not self.model.training:
                self.evaluated = copy.deepcopy(given)
                return given
            if self.generations > before:
                self.generation, self.since = copy.deepcopy(self._buffered_inputs), 0
                self.version = self.state.global_step
            self.window.append(self.since % len(self.generation))
            self.since += 1
            return given

        def training_step(self, *given: Any, **more: Any) -> Tensor:
            self.counting = True
            value = super().training_step(*given, **more)
            self.counting = False
            self.values.append(float(value))
            return value

        def _get_per_token_logps_and_entropies(self, *given: Any, **more: Any) -> Any:
            if torch.is_grad_enabled() and self.counting:
                self.passes.append((torch.get_rng_state(), self._fibration_live, given, more))
            return super()._get_per_token_logps_and_entropies(*given, **more)

        def again(self) -> tuple[list[Tensor], list[Tensor]]:
            """Log-probs and entropies of the trained passes of a step, once more, with the same noise."""
            found: tuple[list[Tensor], list[Tensor]] = ([], [])
            with torch.random.fork_rng():
                for part, (state, live, given, more) in zip(self.window, self.passes, strict=True):
                    torch.set_rng_state(state)
                    self._fibration_live = live
                    passed = super()._get_per_token_logps_and_entropies(*given, **more)
                    self._fibration_live = None
                    there = self.generation[part]["completion_mask"].bool()
                    for all_rows, values in zip(found, passed[:2], strict=True):
                        all_rows.extend(row[kept] for row, kept in zip(values, there, strict=True))
            return found

        def prediction_step(self, *given: Any, **more: Any) -> Any:
            found = super().prediction_step(*given, **more)
            rows = [row for part in everyone(rows_of(self.evaluated, 0)) for row in part]
            for row in rows:
                row.old = None
            with torch.enable_grad():
                wanted = expected(self.op, self.policy, rows, None, self.budgets, self.temperature, first=self.start)
            self.evaluations.append((sum(everyone(float(found[0]))) / len(everyone(0)), wanted.value))
            return found

        @property
        def policy(self) -> Any:
            return self.accelerator.unwrap_model(self.model)

        def entropy(self, rows: Sequence[Row]) -> float:
            """Of these rows, the mean over micro-batches of the mean over tokens, as TRL logs it."""
            _, entropies = scores(self.policy, rows, self.temperature)
            found: dict[int, list[Tensor]] = {}
            for row, values in zip(rows, entropies, strict=True):
                found.setdefault(row.batch[1], []).append(values[torch.tensor(row.mask, dtype=torch.bool)])
            means = [torch.cat(each).mean() for each in found.values()]
            return float(torch.stack(means).mean().detach())

        @staticmethod
        def among(rows: list[Row], passed: list[tuple[int, tuple[int, ...]]]) -> list[int]:
            """The places of the rows that are in passes on any rank."""
            seen = Counter((at, *one) for at, theirs in enumerate(everyone(passed)) for one in theirs)
            texts = Counter[Any]()  # two completions of a prompt may be equal, and one of them is left out
            kept = []
            for n, row in enumerate(rows):
                texts[key := (row.batch[0], row.part, tuple(row.prompt + row.completion))] += 1
                kept += [n] if texts[key] <= seen[key] else []
            return kept

        def look(self) -> None:
            generation = self.of_generations
            parts = range(len(self.generation)) if generation else self.window
            mine = [row for n, p in enumerate(parts) for row in rows_of(self.generation[p], p, n)]
            rows = [row for theirs in everyone(mine) for row in theirs]
            tokens = sum(everyone(sum(sum(r.mask) for p in self.generation for r in rows_of(p, 0))))
            length, slices = len(self.window), len(self.generation)
            reference = None
            if self.args.beta:
                other = copy.deepcopy(self.ref_model)
                other.load_state_dict(self.first)
                reference = other, self.args.beta * slices / (tokens * length)
            wanted = expected(
                self.op,
                self.policy,
                rows,
                self.window if generation else None,
                self.budgets,
                self.temperature,
                slices / length,
                reference,
                self.entropy_coef,
                self.start,
                self.again() if self.noisy else None,
            )
            every = [rows_of(self.generation[p], p) for p in self.window]
            mine_live = [max(1, sum(map(is_live, each))) for each in every]
            passed, live, given = (sum(everyone(n)) for n in (len(self.passed), sum(mine_live), sum(map(len, every))))
            alive, filled = (
                sum(everyone(sum(check(row) for each in every for row in each))) for check in (is_live, is_filled)
            )
            if self.op.hierarchy.penalties or self.args.beta or self.entropy_coef:
                live, alive = given, filled
            fresh = self.version == self.state.global_step
            if passed < given and (self.noisy or not fresh) and self.op.coupling.is_row_local:
                stand_ins = {p for p, each in zip(self.window, every, strict=True) if not any(map(is_live, each))}
                in_pass = self.among(rows, self.passed)
                kept = self.among(rows, [one for one in self.passed if one[0] not in stand_ins])
                said = self.again() if self.noisy else None
                of_kept = kept and expected(
                    self.op,
                    self.policy,
                    [rows[n] for n in kept],
                    None,
                    self.budgets,
                    self.temperature,
                    first=self.start,
                    said=None if said is None else ([said[0][n] for n in kept], [said[1][n] for n in kept]),
                )
                wanted.metrics = of_kept.metrics if of_kept else {}
                wanted.metrics["entropy"] = self.entropy([rows[n] for n in in_pass])
            logged = {k: sum(v) / len(v) for k, v in self._metrics["train"].items() if v}
            is_part = any(k.startswith("fibration/live/") for k in logged)
            logged = {k.replace("fibration/live/", "fibration/"): v for k, v in logged.items()}
            ours = {k.removeprefix("fibration/"): v for k, v in logged.items() if k.startswith("fibration/")}
            ours |= {"entropy": logged["entropy"]} if "entropy" in wanted.metrics and not self.noisy else {}
            pairs = [(ours[name], value) for name, value in wanted.metrics.items() if name in ours and value == value]
            value = sum(everyone(sum(self.values))) / len(everyone(0))
            self.updates.append(
                Update(
                    fresh=fresh,
                    rows=(passed, live, given),
                    error=distance([p.grad for p in self.policy.parameters()], wanted.gradient),
                    value=value,
                    value_error=abs(value - wanted.value),
                    forwards=self.forwards - length,
                    micro_batches=length,
                    differs=wanted.differs,
                    metrics=wanted.metrics,
                    logged={k: v for k, v in logged.items() if k.removeprefix("fibration/") not in wanted.metrics},
                    metrics_error=max((abs(f - w) / max(1.0, abs(w)) for f, w in pairs), default=0.0),
                    trained=(alive, filled),
                    is_part=is_part,
                    missing=[k for k, v in wanted.metrics.items() if k not in ours and v == v and k != "entropy"],
                )
            )
            self.window, self.passes, self.values, self.forwards, self.passed = [], [], [], 0, []

    return Watched


def dataset(number: int, twice: bool = False) -> Dataset:
    """With `twice`, a prompt comes again four lines on, so that its domain is the same."""
    found = lines(number)
    for line in found if twice else ():
        line["prompt"] = found[line["line"] & ~4]["prompt"]
    return Dataset.from_list(found)


def saved(folder: Path, dtype: torch.dtype = torch.float64) -> Path:
    """A folder that the policy and its reference are loaded from."""
    if rank() == 0 and not (folder / "config.json").exists():
        model(dtype).save_pretrained(folder)
        tokenizer().save_pretrained(folder)
    everyone(None)
    return folder
