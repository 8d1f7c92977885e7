"""Small transformers, many at once: every weight has a first axis over models, and a batch of runs is one computation.

A prompt is read once for all of its samples: a sequence is a prompt and the responses to it one after another, and a
mask lets every response see its prompt and itself alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from tasks import END, PROMPT, RESPONSE, VOCABULARY
from torch import Tensor
from torch.nn.functional import embedding, layer_norm, relu, scaled_dot_product_attention


@dataclass(frozen=True)
class Shape:
    width: int = 64
    layers: int = 2
    heads: int = 4
    vocabulary: int = VOCABULARY  # tokens that are read
    outputs: int = VOCABULARY  # tokens that are written
    positions: int = PROMPT + RESPONSE

    @cached_property
    def weights(self) -> dict[str, tuple[int, ...]]:
        d = self.width
        layers = {
            f"{k}.{name}": shape
            for k in range(self.layers)
            for name, shape in {"qkv": (d, 3 * d), "out": (d, d), "up": (d, 4 * d), "down": (4 * d, d)}.items()
        }
        ends = {"token": (self.vocabulary, d), "position": (self.positions, d)}
        return {**ends, **layers, "head": (d, self.outputs)}

    @cached_property
    def size(self) -> int:
        return sum(a * b for a, b in self.weights.values())

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Weights by name, `[models, in, out]`, in a buffer `[models, size]`."""
        found, at = {}, 0
        for name, (a, b) in self.weights.items():
            found[name] = flat[:, at : at + a * b].view(-1, a, b)
            at += a * b
        return found

    def initial(self, seeds: Sequence[int]) -> Tensor:
        """`[models, size]`: a model's weights depend on its seed alone."""
        flat = torch.empty(len(seeds), self.size)
        for row, seed in zip(flat, seeds, strict=True):
            draw = torch.Generator().manual_seed(seed)
            for name, weight in self.views(row[None]).items():
                scale = 0.02 if name in ("token", "position") else weight.shape[1] ** -0.5
                if name.endswith(("out", "down")):
                    scale /= (2 * self.layers) ** 0.5
                weight.normal_(0, scale, generator=draw)
        return flat


def look_up(table: Tensor, index: Tensor) -> Tensor:
    """Rows `[models, n, d]` of a table per model `[models, rows, d]`."""
    first = torch.arange(len(table)).view(-1, *[1] * (index.dim() - 1)) * table.shape[1]
    return embedding(index + first, table.flatten(0, 1))


def norm(x: Tensor) -> Tensor:
    return layer_norm(x, x.shape[-1:])


class Sequences:
    """Where the tokens of a prompt and its `samples` responses stand, and what each of them sees."""

    def __init__(self, samples: int) -> None:
        self.samples, read = samples, RESPONSE - 1  # the last token of a response is predicted, and never read
        response = PROMPT + torch.arange(read).repeat(samples)
        self.position = torch.cat([torch.arange(PROMPT), response])
        owner = torch.cat([torch.full((PROMPT,), -1), torch.arange(samples).repeat_interleave(read)])
        mine = (owner[None] == -1) | (owner[None] == owner[:, None])
        self.sees = mine & (self.position[None] <= self.position[:, None])
        # what predicts token j of sample k: the prompt's last token, or token j - 1 of the sample
        last = torch.full((samples, 1), PROMPT - 1)
        self.predicts = torch.cat([last, PROMPT + torch.arange(samples * read).view(samples, read)], 1)


def logits(shape: Shape, weights: dict[str, Tensor], prompts: Tensor, responses: Tensor, at: Sequences) -> Tensor:
    """`[models, groups, samples, RESPONSE, VOCABULARY]`: of every token of the responses, from what is before it."""
    models, groups, samples = responses.shape[:3]
    text = torch.cat([prompts, responses[..., :-1].flatten(2)], 2)  # [models, groups, tokens]
    x = look_up(weights["token"], text) + weights["position"][:, None, at.position]
    tokens = text.shape[2]
    x = x.flatten(1, 2)
    for k in range(shape.layers):
        qkv = torch.bmm(norm(x), weights[f"{k}.qkv"])
        q, key, v = qkv.view(models * groups, tokens, 3, shape.heads, -1).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(q, key, v, attn_mask=at.sees)
        x = x + torch.bmm(seen.transpose(1, 2).reshape(models, groups * tokens, -1), weights[f"{k}.out"])
        x = x + torch.bmm(relu(torch.bmm(norm(x), weights[f"{k}.up"])), weights[f"{k}.down"])
    x = x.view(models, groups, tokens, -1)[:, :, at.predicts.flatten()]
    return torch.bmm(norm(x).flatten(1, 2), weights["head"]).view(models, groups, samples, RESPONSE, VOCABULARY)


def log_probs(shape: Shape, weights: dict[str, Tensor], prompts: Tensor, responses: Tensor, at: Sequences) -> Tensor:
    """`log π` of the responses' tokens, `[models, groups, samples, RESPONSE]`."""
    every = logits(shape, weights, prompts, responses, at).log_softmax(-1)
    return every.gather(-1, responses[..., None])[..., 0]


def gumbel(draws: Sequence[torch.Generator], rows: int) -> Tensor:
    """Noise for `sample`, of a generator per model."""
    uniform = [torch.rand(RESPONSE, rows, VOCABULARY, generator=draw) for draw in draws]
    return -torch.log(-torch.log(torch.stack(uniform, 1).clamp_(1e-7, 1 - 1e-7)))


@torch.no_grad()
def sample(
    shape: Shape, weights: dict[str, Tensor], prompts: Tensor, samples: int, noise: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Responses and their log-probs, both `[models, groups, samples, RESPONSE]`; greedy ones without noise.

    `noise` is Gumbel's, `[RESPONSE, models, groups * samples, VOCABULARY]`. After its END a response is filled with
    more of them, which are to be masked.
    """
    models, groups = prompts.shape[:2]
    rows, heads = groups * samples, shape.heads

    def split(x: Tensor, n: int) -> Tensor:
        return x.view(models, groups, n, 3, heads, -1).permute(3, 0, 1, 4, 2, 5)

    x = (look_up(weights["token"], prompts) + weights["position"][:, None, :PROMPT]).flatten(1, 2)
    of_prompt: list[tuple[Tensor, Tensor]] = []  # keys and values of every layer, of prompts and of each token after
    of_rows: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(shape.layers)]
    for k in range(shape.layers):
        q, key, v = split(torch.bmm(norm(x), weights[f"{k}.qkv"]), PROMPT)
        of_prompt.append((key.flatten(0, 2), v.flatten(0, 2)))
        seen = scaled_dot_product_attention(q.flatten(0, 1), key.flatten(0, 1), v.flatten(0, 1), is_causal=True)
        x = x + torch.bmm(seen.transpose(1, 2).reshape(models, groups * PROMPT, -1), weights[f"{k}.out"])
        x = x + torch.bmm(relu(torch.bmm(norm(x), weights[f"{k}.up"])), weights[f"{k}.down"])
    x = x.view(models, groups, PROMPT, -1)[:, :, -1].repeat_interleave(samples, 1)
    said: list[Tensor] = []
    likely: list[Tensor] = []
    for j in range(RESPONSE):
        every = torch.bmm(norm(x), weights["head"]).log_softmax(-1)
        token = (every if noise is None else every + noise[j]).argmax(-1)
        token = torch.where(said[-1] == END, END, token) if said else token
        said.append(token)
        likely.append(every.gather(-1, token[..., None])[..., 0])
        if j == RESPONSE - 1:
            break
        x = look_up(weights["token"], token) + weights["position"][:, PROMPT + j, None]
        for k in range(shape.layers):
            q, key, v = split(torch.bmm(norm(x), weights[f"{k}.qkv"]), samples)
            q = q.flatten(0, 2) * q.shape[-1] ** -0.5  # [models·groups·heads, samples, d]
            of_rows[k].append((key.flatten(0, 2), v.flatten(0, 2)))
            far = torch.bmm(q, of_prompt[k][0].transpose(1, 2))
            near = torch.stack([(q * past).sum(-1) for past, _ in of_rows[k]], -1)
            share = torch.cat([far, near], -1).softmax(-1)
            seen = torch.bmm(share[..., :PROMPT], of_prompt[k][1])
            for i, (_, value) in enumerate(of_rows[k]):
                seen.addcmul_(share[..., PROMPT + i, None], value)
            seen = seen.view(models, groups, heads, samples, -1).transpose(2, 3).reshape(models, rows, -1)
            x = x + torch.bmm(seen, weights[f"{k}.out"])
            x = x + torch.bmm(relu(torch.bmm(norm(x), weights[f"{k}.up"])), weights[f"{k}.down"])
    responses, log_p = (torch.stack(t, -1).view(models, groups, samples, RESPONSE) for t in (said, likely))
    return responses, log_p
