"""Four domains of questions about digits whose answers can be checked: characters in, characters out."""

from __future__ import annotations

import torch
from torch import Tensor

DOMAINS = ("addition", "sorting", "reversing", "sums")
DIGITS = 6  # of a question
END, EQUALS, FIRST_SIGN = 10, 11, 12  # tokens beyond the digits 0..9; every domain has a sign of its own
VOCABULARY = FIRST_SIGN + len(DOMAINS)
PROMPT = DIGITS + 2  # a domain's sign, the digits, "="
RESPONSE = 8  # an answer with its end is 5 or 7 tokens long; what is longer is wrong


def stream(*key: int) -> torch.Generator:
    """A generator for every key of small integers: what a run draws depends on its seed, not on what runs beside it."""
    mixed = 0
    for part in key:
        mixed = (mixed * 1_000_003 + part + 2000) % (2**61 - 1)
    return torch.Generator().manual_seed(mixed)


def ask(domain: int, questions: int, draw: torch.Generator) -> Tensor:
    """Random prompts of a domain: int64 `[questions, PROMPT]`."""
    digits = torch.randint(10, (questions, DIGITS), generator=draw)
    sign = torch.full((questions, 1), FIRST_SIGN + domain)
    return torch.cat([sign, digits, torch.full((questions, 1), EQUALS)], 1)


def answer(prompts: Tensor) -> Tensor:
    """What is right: int64 `[..., RESPONSE]`, `END` from the end of the answer on.

    - addition: of two numbers of three digits, least digit first, four digits
    - sorting: the digits in ascending order
    - reversing: the digits from the last to the first
    - sums: after each digit the sum so far, modulo 10
    """
    digits, half = prompts[..., 1 : 1 + DIGITS], DIGITS // 2
    place = 10 ** torch.arange(half - 1, -1, -1)
    total = (digits[..., :half] * place).sum(-1) + (digits[..., half:] * place).sum(-1)
    by_domain = (
        total[..., None] // 10 ** torch.arange(half + 1) % 10,
        digits.sort(-1).values,
        digits.flip(-1),
        digits.cumsum(-1) % 10,
    )
    right = torch.full((*prompts.shape[:-1], RESPONSE), END)
    for domain, text in enumerate(by_domain):
        here = prompts[..., :1] == FIRST_SIGN + domain
        right[..., : text.shape[-1]] = torch.where(here, text, right[..., : text.shape[-1]])
    return right


def lengths(responses: Tensor) -> Tensor:
    """Tokens of each response with its `END`: int64 `[...]`, at most RESPONSE."""
    return ((responses == END).cumsum(-1) == 0).sum(-1).add(1).clamp(max=RESPONSE)
