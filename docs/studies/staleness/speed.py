"""What a step costs, the plain way and as the study takes it: `python docs/studies/staleness/speed.py`.

One step is: sample, take log-probs, ask the loss for its coefficients, go back through the model, update by Adam; of
`inward_domain`, at the sizes of the study. Every way is the one before it with one thing changed; they take turns, so
that whatever else the machine does meets all of them. Writes `results/speed.json`; the one that is there was measured
with six models side by side and an update without corrections for Adam's first steps.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from adam import BETAS, CLIP, Adam
from arms import ARMS
from model import Sequences, Shape, gumbel, log_probs, logits, sample
from rl import GROUPS, PROMPTS, SAMPLES, STACK, standardised
from store import RESULTS
from tasks import DOMAINS, END, PROMPT, RESPONSE, VOCABULARY, answer, ask, lengths, stream
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import fibration
from fibration.files import write_file

FILE = RESULTS / "speed.json"
SEEDS = range(STACK)
SHAPE, ARM, LEARNING_RATE = Shape(), ARMS["inward_domain"], 1e-4


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width, elementwise_affine=False)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        rows, tokens, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(rows, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(rows, tokens, width)
        x = x + self.out(seen)
        return x + self.down(self.up(self.norm(x)).relu())


class Plain(nn.Module):
    """The policy as one writes it: one model, every sample with a prompt of its own, nothing kept between tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = (nn.Embedding(n, SHAPE.width) for n in (VOCABULARY, PROMPT + RESPONSE))
        self.blocks = nn.Sequential(*(Block(SHAPE.width, SHAPE.heads) for _ in range(SHAPE.layers)))
        self.norm = nn.LayerNorm(SHAPE.width, elementwise_affine=False)
        self.head = nn.Linear(SHAPE.width, VOCABULARY, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        x = self.blocks(self.token(text) + self.position(torch.arange(text.shape[1])))
        return self.head(self.norm(x)).log_softmax(-1)

    @torch.no_grad()
    def sample(self, prompts: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        text, likely = prompts, []
        for _ in range(RESPONSE):
            every = self(text)[:, -1]
            token = torch.multinomial(every.exp(), 1, generator=draw)
            token = torch.where(text[:, -1:] == END, END, token)
            likely.append(every.gather(1, token))
            text = torch.cat([text, token], 1)
        return text[:, PROMPT:], torch.cat(likely, 1)


def coefficients(op: fibration.Operator, now: Tensor, old: Tensor, prompts: Tensor, responses: Tensor) -> Tensor:
    """Of one model's samples, `[rows, RESPONSE]`, with their metrics: what the study does with every model."""
    rewards = (responses == answer(prompts)).all(-1).float().view(-1, SAMPLES)
    mask = torch.arange(RESPONSE) < lengths(responses)[:, None]
    groups = torch.arange(len(rewards)).repeat_interleave(SAMPLES)
    index = op.index(mask=mask, prompt_group=groups.tolist(), domain=(groups * len(DOMAINS) // len(rewards)).tolist())
    advantages = standardised(rewards + 1e-3 * torch.arange(SAMPLES)).flatten()  # none of them 0
    given = ARM.given(1.0)
    found = op.coefficients(now, old, advantages, index, given)
    op.coefficients(old, old, advantages, index, given, metrics=[])
    found.scalars()
    return found.values


def questions(seed: int, step: int, groups: int = GROUPS) -> Tensor:
    draw = stream(seed, step)
    return torch.cat([ask(domain, groups, draw) for domain in range(len(DOMAINS))])


def plain(groups: int = GROUPS) -> Callable[[int], None]:
    op, model = fibration.compile(ARM.hierarchy(), backend="torch"), Plain()
    optimizer, draw = torch.optim.Adam(model.parameters(), LEARNING_RATE, BETAS), stream(0)

    def step(number: int) -> None:
        prompts = questions(0, number, groups).repeat_interleave(SAMPLES, 0)
        responses, old = model.sample(prompts, draw)
        every = model(torch.cat([prompts, responses[:, :-1]], 1))[:, PROMPT - 1 :]
        now = every.gather(-1, responses[..., None])[..., 0]
        optimizer.zero_grad()
        now.backward(-coefficients(op, now.detach(), old, prompts, responses))
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()

    return step


def recomputed(weights: dict[str, Tensor], prompts: Tensor, at: Sequences, noise: Tensor) -> tuple[Tensor, Tensor]:
    """What `sample` returns, by a pass over all tokens for each of them."""
    said = torch.full((*prompts.shape[:2], 1, RESPONSE), END)
    for j in range(RESPONSE):
        every = logits(SHAPE, weights, prompts, said, at)[..., j, :].log_softmax(-1)
        token = (every + noise[j].view(every.shape)).argmax(-1)
        said[..., j] = token if j == 0 else torch.where(said[..., j - 1] == END, END, token)
    return said, log_probs(SHAPE, weights, prompts, said, at)


def functional(models: int, cached: bool, shared: bool, backend: str) -> Callable[[int], None]:
    op = fibration.compile(ARM.hierarchy(), backend=backend)
    flat, samples = SHAPE.initial(SEEDS[:models]), SAMPLES if shared else 1
    gradient, adam = torch.zeros_like(flat), Adam(flat)
    weights, at = SHAPE.views(flat), Sequences(samples)
    for weight, part in zip(weights.values(), SHAPE.views(gradient).values(), strict=True):
        weight.requires_grad_().grad = part

    def step(number: int) -> None:
        asked = torch.stack([questions(seed, number) for seed in SEEDS[:models]])
        prompts = asked if shared else asked.repeat_interleave(SAMPLES, 1)
        noise = gumbel([stream(seed, number, 1) for seed in SEEDS[:models]], PROMPTS * SAMPLES)
        with torch.no_grad():
            if cached:
                responses, old = sample(SHAPE, weights, prompts, samples, noise)
            else:
                responses, old = recomputed(weights, prompts, at, noise)
        gradient.zero_()
        now = log_probs(SHAPE, weights, prompts, responses, at)
        rows = lambda x, k: x[k].detach().reshape(-1, RESPONSE)  # noqa: E731
        values = [
            coefficients(op, rows(now, k), rows(old, k), asked[k].repeat_interleave(SAMPLES, 0), rows(responses, k))
            for k in range(models)
        ]
        torch.autograd.backward(now, -torch.stack(values).view_as(now))
        adam.update(flat, gradient, LEARNING_RATE, number)

    return step


def ways() -> dict[str, tuple[int, Callable[[int], None]]]:
    """How many models a step is of, and the step."""
    return {
        "plain, 256 samples": (1, plain(2 * GROUPS)),
        "plain": (1, plain()),
        "weights in one tensor": (1, functional(1, cached=False, shared=False, backend="torch")),
        "sampling with a cache": (1, functional(1, cached=True, shared=False, backend="torch")),
        "a prompt read once for its samples": (1, functional(1, cached=True, shared=True, backend="torch")),
        "the loss compiled for C": (1, functional(1, cached=True, shared=True, backend="c")),
        f"{STACK} models side by side": (len(SEEDS), functional(len(SEEDS), cached=True, shared=True, backend="c")),
    }


def measured(steps: int, warm: int = 2) -> dict[str, dict[str, float]]:
    """Median seconds of a step of one model: by the clock, and of processor time."""
    every = ways()
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in every}
    for number in range(-warm, steps):
        for name, (models, step) in every.items():
            clock, processor = time.perf_counter(), time.process_time()
            step(number + warm)
            if number >= 0:
                taken[name].append(((time.perf_counter() - clock) / models, (time.process_time() - processor) / models))
    found, reference = {}, "plain"
    for name, pairs in taken.items():
        clock, processor = (statistics.median(column) for column in zip(*pairs, strict=True))
        found[name] = {"seconds": clock, "processor_seconds": processor}
    least = found[reference]["processor_seconds"]
    return {
        name: {**{k: round(v, 5) for k, v in of.items()}, "times_plain": round(least / of["processor_seconds"], 2)}
        for name, of in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=15, help="of each way, in turns")
    parser.add_argument("--machine", default="nothing said", help="in words: how busy it was")
    parser.add_argument("--file", type=Path, default=FILE)
    given = parser.parse_args()
    torch.set_num_threads(1)
    versions = {"fibration": fibration.__version__, "torch": torch.__version__, "python": platform.python_version()}
    said = {
        "what": "medians of a step of one model with 128 samples, one thread; ratios are of processor time",
        "machine": given.machine,
        "steps": given.steps,
        "side_by_side": STACK,
        "versions": versions,
        "ways": measured(given.steps),
    }
    given.file.parent.mkdir(parents=True, exist_ok=True)
    write_file(given.file, json.dumps(said, indent=1) + "\n")
    for name, of in said["ways"].items():
        clock, processor, ratio = (of[k] for k in ("seconds", "processor_seconds", "times_plain"))
        print(f"{name:36s} {clock * 1e3:7.1f} ms, {processor * 1e3:6.1f} ms of a processor, {ratio:5.2f} times plain")


if __name__ == "__main__":
    main()
