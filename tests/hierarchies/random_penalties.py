"""Random chains, trees and quivers with penalties of tokens and of coarser elements, with every kind of weight."""

from __future__ import annotations

from fibration import (
    Hierarchy,
    Penalty,
    absolute,
    advantage,
    exp,
    expm1,
    log,
    mean,
    stop,
    tanh,
    token_log_ratio,
    token_mean,
    total,
    trajectory_mean,
    where,
)
from fibration.language.expressions import Expression
from hierarchies.random_token_formulas import Words, bound, k, log_prob, now, reference, with_words

x = now - log_prob(reference)


class Penalties(Words):
    """What may be taken off the objective of one hierarchy."""

    SIZE = where(advantage > 0.5, k, k / 2)  # penalties read advantages in conditions alone

    def moving(self, depth: int = 1) -> Expression:
        """A number that moves with the policy."""
        plain = [x, token_log_ratio, now / 4, x * stop(token_log_ratio), token_log_ratio + x]
        if not depth or self.random.random() < 0.4:
            return self.one(*plain)
        s, inner = self.random.choice(self.over), self.moving(depth - 1)
        return self.one(
            mean(inner, over=s),
            total(inner * inner, over=s) / 8,
            inner - mean(inner, over=s),
            where(self.condition(0), inner, self.number(1)),
            inner * self.number(1),
        )

    def of_tokens(self) -> Penalty:
        y = self.moving(2)
        formula = self.one(
            expm1(-y) + y,
            y * y / 2,
            bound * exp(stop(token_log_ratio)) * (expm1(-y) + y),
            y,
            tanh(y),
            exp(y) * k,
            absolute(y),
        )
        formula = self.one(formula, formula, where(advantage > 0, formula, 0))
        if self.random.random() < 0.5:
            return Penalty(formula)
        shared = trajectory_mean() if self.h.objective.weighed else self.h.objective
        own = self.random.choice([token_mean(), trajectory_mean(), shared])
        for _ in range(self.random.choice([0, 1, 1])):
            own = own.weigh(self.weight())
        for _ in range(self.random.choice([0, 1, 1])):
            own = own.keep(self.condition(), normaliser=self.random.choice(["all", "kept"]))
        return Penalty(
            formula,
            objective=own.model_copy(update={"estimator": "ratio", "written": own.written.replace(".score()", "")}),
        )

    def of_elements(self) -> Penalty:
        s = self.random.choice(self.over)
        y = mean(self.moving(), over=s)
        some = log(1 + total(exp(-self.moving(0) / 2), over=s))
        return Penalty(self.one(y * y, exp(-y), some, some * y), over=s)

    def hierarchy(self) -> Hierarchy:
        drawn = [self.of_tokens(), self.of_elements() if self.random.random() < 0.6 else self.of_tokens()]
        return self.h.replace(name=f"penalised_{self.h.name}", penalties={"one": drawn[0], "other": drawn[1]})


def with_penalties(h: Hierarchy, seed: int) -> Hierarchy:
    """Of two seeds, one has weights and conditions too."""
    return Penalties(with_words(h, seed) if seed % 3 == 0 else h, seed).hierarchy()
