"""Changes a batch: its rewards, the end of a row, or the log-prob of one token."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from fibration import Hierarchy
from fibration.language.atoms import BATCH, Stratum
from fuzz.batches import Batches
from fuzz.world import Batch


@dataclass(frozen=True)
class Token:
    """What one token of a batch has."""

    leaf: Stratum
    labels: Mapping[str, Any]
    x: Any
    advantage: Any
    log_probs: Mapping[str, Any]
    attributes: Mapping[str, Any]  # of its own stratum
    reward: Any = None  # where rewards are those of tokens


def tokens_of(h: Hierarchy, b: Batch) -> list[Token]:
    own = [a for a in h.attributes.values() if a.on in h.leaves]
    return [
        Token(
            b.leaf[i], {s: v[i] for s, v in b.labels.items()}, b.x[i], b.advantages[i],
            {p: v[i] for p, v in b.policies.items()}, {a.name: b.attributes[a.name].get(i, Fraction(1)) for a in own},
            (b.rewards or {})[i] if b.by_token else None,
        )
        for i in range(b.size)
    ]  # fmt: skip


def of_tokens(h: Hierarchy, b: Batch, tokens: list[Token]) -> Batch:
    """The batch with these tokens in the place of its own; of labels that are new, attributes are those of any other."""
    attributes: dict[str, Any] = {}
    for a in h.attributes.values():
        if a.on in h.leaves:
            attributes[a.name] = {i: t.attributes[a.name] for i, t in enumerate(tokens) if t.leaf == a.on}
        else:
            known = dict(b.attributes[a.name])
            there = [0] if a.on.name == BATCH else [t.labels[a.on.name] for t in tokens]
            attributes[a.name] = {e: known.get(e, next(iter(known.values()))) for e in there if e is not None}
    rewards = {i: t.reward for i, t in enumerate(tokens)} if b.by_token else b.rewards
    return replace(
        b, leaf=[t.leaf for t in tokens], labels={s: [t.labels[s] for t in tokens] for s in b.labels},
        x=[t.x for t in tokens], advantages=[t.advantage for t in tokens],
        policies={p: [t.log_probs[p] for t in tokens] for p in b.policies}, attributes=attributes, rewards=rewards,
    )  # fmt: skip


class Changes:
    """Changes of batches of one hierarchy."""

    def __init__(self, h: Hierarchy, rng: random.Random, draw: Batches) -> None:
        self.h, self.rng, self.draw = h, rng, draw

    def row(self, b: Batch, i: int) -> list[int]:
        """The tokens of the row of a token, in order."""
        rows = b.labels[self.h.rows.name]
        return [k for k, r in enumerate(rows) if r == rows[i]]

    def numbers(self, t: Token, together: bool = False) -> Token:
        """A token with other log-probs. `together`: all policies still coincide."""
        old = min(self.draw._log_prob(), Fraction(0))
        found = {p: old if together else min(self.draw._log_prob(), Fraction(0)) for p in t.log_probs}
        x = Fraction(0) if together else self.draw._log_ratio(found["old"])
        return replace(t, log_probs=found, x=x)

    def attributes(self, t: Token) -> Token:
        known = {a.name: a for a in self.h.attributes.values()}
        return replace(t, attributes={n: self.draw._in_range(known[n]) for n in t.attributes})

    def ends(self, b: Batch, i: int, as_many: bool = False, together: bool = False) -> Batch:
        """The batch with other tokens behind one token of a row: other numbers, and another number of them."""
        rng, tokens = self.rng, tokens_of(self.h, b)
        later = [k for k in self.row(b, i) if k > i]
        n = len(later) if as_many else rng.choice([0, 1, 2, len(later), len(later) + 1])
        made, last = [], tokens[i]
        for k in range(n):
            old = tokens[later[k]] if k < len(later) else last
            new = self.attributes(self.numbers(old, together))
            if not as_many:
                new = replace(new, leaf=self.leaf(old.leaf), labels=self.labels(old if k < len(later) else last, k))
            if b.by_token and k >= len(later):
                new = replace(new, reward=Fraction(0))
            if not self.draw.read_at:
                new = replace(new, advantage=rng.choice([new.advantage, Fraction(1), Fraction(-2)]))
            made.append(new)
            last = new
        gone = set(later)
        first = i + 1
        kept_before = tokens[:first]
        kept_after = [t for k, t in enumerate(tokens) if k >= first and k not in gone]
        return of_tokens(self.h, b, [*kept_before, *made, *kept_after])

    def leaf(self, own: Stratum) -> Stratum:
        """Another kind of token, where any may be; a branch that must not be empty is left as it is."""
        return own if self.h.assume else self.rng.choice([own, *self.h.leaves])

    def labels(self, t: Token, k: int) -> Mapping[str, Any]:
        """Those of a later token, which may begin a new turn."""
        found = dict(t.labels)
        for s in self.h.strata:
            within = s.name in found and s != self.h.rows and self.h.rows in self.h.coarser(s)
            if within and found[s.name] is not None and self.rng.random() < 0.3:
                found[s.name] = (*found[s.name][:-1], found[s.name][-1] + 10 * (k + 1))
        return found

    def others(self, b: Batch, i: int) -> Batch:
        """The batch in which other rows have other rewards, log-probs and attributes of tokens."""
        row, tokens = set(self.row(b, i)), tokens_of(self.h, b)
        made = [t if k in row else self.attributes(self.numbers(t)) for k, t in enumerate(tokens)]
        if b.by_token:
            made = [t if k in row else replace(t, reward=self.draw._number()) for k, t in enumerate(made)]
            return of_tokens(self.h, b, made)
        own = b.labels[self.h.rows.name][i]
        rewards = {r: v if r == own else self.draw._number() for r, v in (b.rewards or {}).items()}
        return of_tokens(self.h, replace(b, rewards=rewards), made)

    def others_of(self, b: Batch, other: Batch, i: int) -> Batch:
        """The batch with the other rows of one that has as many tokens."""
        row, mine, theirs = set(self.row(b, i)), tokens_of(self.h, b), tokens_of(self.h, other)
        made = [t if k in row else theirs[k] for k, t in enumerate(mine)]
        return of_tokens(self.h, replace(b, rewards=b.rewards if b.by_token else other.rewards), made)

    def token(self, b: Batch, i: int, change: Callable[[Token], Token]) -> Batch:
        tokens = tokens_of(self.h, b)
        tokens[i] = change(tokens[i])
        return of_tokens(self.h, b, tokens)

    def rewarded(self, b: Batch, i: int, more: Any, token: int | None = None) -> Batch:
        """The batch in which the row of a token has more reward, or one of its tokens."""
        assert b.rewards is not None
        key = i if token is None else token
        key = key if b.by_token else b.labels[self.h.rows.name][key]
        return replace(b, rewards={**b.rewards, key: b.rewards[key] + more})
