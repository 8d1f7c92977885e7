"""The toy of the study: digits that follow a rule, a corpus with mistakes, and a transformer that learns it.

A prompt is a rule's sign and four digits. The answer goes on from the last digit of the prompt. Each of its digits
should be a factor, the rule's, times the digit before plus the first digit of the prompt, modulo 10. A digit may be
written in either of two styles. The corpus keeps a style for many tokens, and is more often right in one of them. A
wrong digit of the corpus takes the second digit of the prompt for the first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import pad, relu, scaled_dot_product_attention

sys.path.append(str(Path(__file__).resolve().parent.parent / "staleness"))  # whose parts the study shares
from model import Shape, look_up, norm

FACTORS = (1, 3, 7, 9)  # of the rules
DIGITS, ANSWER = 4, 128  # of a prompt, of an answer
START, FIRST_SIGN = 20, 21  # tokens beyond the digits: 0..9 in the good style, 10..19 in the bad one
VOCABULARY = FIRST_SIGN + len(FACTORS)
PROMPT = 1 + DIGITS
TEXT = PROMPT + ANSWER
WINDOW = 4  # tokens that a token sees beside the prompt, itself included: answers repeat, and may not be copied
RIGHT = (0.95, 0.95, 0.9, 0.9), (0.1, 0.1, 0.2, 0.2)  # how often the corpus is right, by style and rule
TURNS = 0.1, 0.05  # how often the corpus leaves each style
FIRST_GOOD = TURNS[1] / sum(TURNS)  # how often it begins in the good one
SHAPE = Shape(vocabulary=2 * VOCABULARY, positions=TEXT, outputs=VOCABULARY)  # tokens, and the tokens before them

PLACES = torch.arange(TEXT - 1)
BACK = PLACES[:, None] - PLACES
SEES = (BACK >= 0) & ((PLACES < PROMPT) | (BACK < WINDOW))


def ask(prompts: int, draw: torch.Generator, held_out: bool = False) -> Tensor:
    """Random prompts, int64 `[prompts, PROMPT]`. The digits of held-out ones add up to 0 modulo 10, others' do not."""
    sign = torch.randint(len(FACTORS), (prompts, 1), generator=draw) + FIRST_SIGN
    digits = torch.randint(10, (prompts, DIGITS - 1), generator=draw)
    total = 0 if held_out else torch.randint(1, 10, (prompts, 1), generator=draw)
    last = (total - digits.sum(1, keepdim=True)) % 10
    return torch.cat([sign, digits, last], 1)


def corpus(prompts: Tensor, draw: torch.Generator) -> Tensor:
    """Answers that the base learns from, int64 `[rows, ANSWER]`, with their mistakes."""
    rule = prompts[:, 0] - FIRST_SIGN
    factor, right, turns = torch.tensor(FACTORS)[rule], torch.tensor(RIGHT), torch.tensor(TURNS)
    luck, turn = torch.rand(2, ANSWER, len(prompts), generator=draw)
    style = (torch.rand(len(prompts), generator=draw) >= FIRST_GOOD).long()
    digit, found = prompts[:, -1], []
    for t in range(ANSWER):
        digit = (factor * digit + torch.where(luck[t] < right[style, rule], prompts[:, 1], prompts[:, 2])) % 10
        found.append(digit + 10 * style)
        style = torch.where(turn[t] < turns[style], 1 - style, style)
    return torch.stack(found, -1)


def score(prompts: Tensor, answers: Tensor) -> Tensor:
    """The share of digits that follow the rule from the digit before: of `[rows, ANSWER]`, `[rows]`."""
    factor = torch.tensor(FACTORS)[prompts[:, :1] - FIRST_SIGN]
    before = torch.cat([prompts[:, -1:], answers[:, :-1]], -1)
    wanted = (factor * before + prompts[:, 1:2]) % 10
    return ((answers < START) & (answers % 10 == wanted)).float().mean(-1)


def embed(weights: dict[str, Tensor], text: Tensor, before: Tensor, at: slice) -> Tensor:
    """`[models, rows, tokens, width]`: a token, the token before it, and its position."""
    token = look_up(weights["token"], text) + look_up(weights["token"], before + VOCABULARY)
    return token + weights["position"][:, None, at]


def layer(weights: dict[str, Tensor], k: int, x: Tensor, attend: Callable[[Tensor], Tensor]) -> Tensor:
    """Layer `k` of `x`, `[models, n, width]`; `attend` maps queries, keys and values `[models, n, 3 · width]`."""
    x = x + torch.bmm(attend(torch.bmm(norm(x), weights[f"{k}.qkv"])), weights[f"{k}.out"])
    return x + torch.bmm(relu(torch.bmm(norm(x), weights[f"{k}.up"])), weights[f"{k}.down"])


def logits(weights: dict[str, Tensor], prompts: Tensor, answers: Tensor) -> Tensor:
    """`[models, rows, ANSWER, VOCABULARY]` of the tokens of `answers`, `[models, rows, ANSWER]`."""
    models, rows = answers.shape[:2]
    text = torch.cat([prompts, answers[..., :-1]], -1)
    tokens = text.shape[-1]
    x = embed(weights, text, pad(text[..., :-1], (1, 0), value=START), slice(0, tokens)).flatten(1, 2)

    def attend(qkv: Tensor) -> Tensor:
        q, k, v = qkv.view(models * rows, tokens, 3, SHAPE.heads, -1).permute(2, 0, 3, 1, 4)
        return scaled_dot_product_attention(q, k, v, attn_mask=SEES).transpose(1, 2).reshape(models, rows * tokens, -1)

    for k in range(SHAPE.layers):
        x = layer(weights, k, x, attend)
    x = x.view(models, rows, tokens, -1)[:, :, PROMPT - 1 :].flatten(1, 2)
    return torch.bmm(norm(x), weights["head"]).view(models, rows, ANSWER, VOCABULARY)


def log_probs(weights: dict[str, Tensor], prompts: Tensor, answers: Tensor) -> Tensor:
    """Log-probs of the tokens of `answers`, `[models, rows, ANSWER]`."""
    return logits(weights, prompts, answers).log_softmax(-1).gather(-1, answers[..., None])[..., 0]


@torch.no_grad()
def sample(weights: dict[str, Tensor], prompts: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
    """Answers to `prompts` `[models, rows, PROMPT]` and their log-probs, both `[models, rows, ANSWER]`.

    `noise` is Gumbel's, `[ANSWER, models, rows, VOCABULARY]`. Without noise the answers are greedy.
    """
    models, rows = prompts.shape[:2]
    width, heads = SHAPE.width, SHAPE.heads
    cache = torch.empty(SHAPE.layers, 2, models * rows * heads, TEXT, width // heads)
    text = torch.full((models, rows, 1 + TEXT), START)  # one place later, so that every token has one before it
    text[..., 1 : 1 + PROMPT] = prompts
    likely = torch.empty(models, rows, ANSWER)

    def attend(kept: Tensor, at: int, qkv: Tensor) -> Tensor:
        q, *new = qkv.view(models * rows, 3, heads, -1).transpose(0, 1).reshape(3, models * rows * heads, -1)
        kept[:, :, at] = torch.stack(new)
        keys, values = kept[:, :, SEES[at].nonzero()[:, 0]]
        share = (torch.bmm(keys, q[..., None])[..., 0] * q.shape[-1] ** -0.5).softmax(-1)
        return torch.bmm(share[:, None], values).view(models, rows, -1)

    for j in range(TEXT - 1):
        x = embed(weights, text[..., j + 1 : j + 2], text[..., j : j + 1], slice(j, j + 1)).flatten(1, 2)
        for k in range(SHAPE.layers):
            x = layer(weights, k, x, partial(attend, cache[k], j))
        if j >= PROMPT - 1:
            at = j - PROMPT + 1
            every = torch.bmm(norm(x), weights["head"]).log_softmax(-1)
            token = (every if noise is None else every + noise[at]).argmax(-1, keepdim=True)
            text[..., j + 2] = token[..., 0]
            likely[..., at] = every.gather(-1, token)[..., 0]
    return text[..., 1 + PROMPT :], likely
