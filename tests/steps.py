"""Steps of shipped and random hierarchies: rows, labels and log-probs of all policies, off policy."""

import functools

import numpy as np
import torch
from hierarchies import chains, random_quivers
from hierarchies.in_order import with_order
from hierarchies.penalised import with_penalties
from support import operator, packed, spec

from fibration.language.loading import shipped
from fibration.runtime.operator import Operator

SPECS = sorted(shipped())
RANDOM = {
    **{f"chain {s}": functools.partial(chains.chain, s) for s in range(24)},
    **{f"quiver {s}": functools.partial(random_quivers.quiver, s) for s in range(24)},
    **{f"order {s}": lambda s=s: with_order(chains.chain(s), s) for s in range(8)},
    **{f"penalty {s}": lambda s=s: with_penalties(chains.chain(s), s) for s in range(8)},
}


class Step:
    """A step of a hierarchy: random rows, labels, attributes and log-probs of all its policies, off policy."""

    def __init__(self, op: Operator, seed: int, layout=packed) -> None:
        h, self.op = op.hierarchy, op
        drawn = chains if h.shape.is_chain and not h.groups and "state" not in map(str, h.strata) else random_quivers
        batch = drawn.batch_for(h, seed, **({"smooth": True} if drawn is chains else {"zeros": "none"}))
        generator = np.random.default_rng(seed)
        self.layout = layout(op, batch)
        self.index, self.parameters = self.layout.index, batch.parameters
        rows, n = len(batch.lengths), batch.tokens
        scale = generator.choice([0.3, 1.0, 3.0]) / (
            1 + max(batch.lengths) // 20
        )  # every branch of a gate, by some seed
        self.old = self.layout.tensor(-generator.exponential(size=n) - 0.01)
        self.new = self.old + self.layout.tensor(scale * batch.x / (np.abs(batch.x).max() + 1e-9))
        frozen = [p for p in h.policies if p not in ("current", "old")]
        self.policies = {p: self.old + self.layout.tensor(generator.normal(size=n) * 0.3) for p in frozen}
        self.advantages = torch.from_numpy(generator.normal(size=rows))

    def coefficients(self, new=None):
        return self.op.coefficients(
            self.new if new is None else new, self.old, self.advantages, self.index, self.parameters,
            policies=self.policies,
        )  # fmt: skip

    def freeze(self):
        self.op.freeze(self.old, self.advantages, self.index, self.parameters, policies=self.policies)

    def places(self, rows):
        """The places of some rows in the tensors of the step."""
        bounds = self.index.bounds
        return torch.from_numpy(np.concatenate([np.arange(bounds[r], bounds[r + 1]) for r in rows] or [np.arange(0)]))

    def of(self, tensor, rows):
        if tensor.ndim == 2:
            return tensor[torch.as_tensor(rows, dtype=torch.int64)]
        return tensor[self.places(rows)]

    def loss(self, rows, new):
        """The loss of a micro-batch of these rows, from the step's log-probs `new`."""
        part = self.index.micro(rows)
        policies = {name: self.of(t, rows) for name, t in self.policies.items()}
        a = self.advantages[torch.as_tensor(rows, dtype=torch.int64)]
        return self.op.loss(self.of(new, rows), self.of(self.old, rows), a, part, self.parameters, policies=policies)

    def elements(self, stratum):
        """The elements of a stratum that each row has tokens of: a set per row."""
        found = [set() for _ in range(len(self.index))]
        for leaf in self.index.leaves_over(stratum):
            for e, place in zip(
                self.index.parent(leaf, stratum).tolist(), self.index.positions_of(leaf).tolist(), strict=True
            ):
                found[int(np.searchsorted(self.index.bounds, place, side="right")) - 1].add(e)
        return found

    def closed(self):
        """The finest cut into micro-batches: the rows that share an element of the coupling, together."""
        left, parts = list(range(len(self.index))), []
        shared = [self.elements(s) for s in self.op.coupling.strata]
        while left:
            mine = {left[0]}
            while more := {r for r in left if any(of[r] & of[m] for of in shared for m in mine)} - mine:
                mine |= more
            parts.append(sorted(mine))
            left = [r for r in left if r not in mine]
        return parts


def made(name):
    h = RANDOM[name]() if name in RANDOM else spec(name)
    return operator(h, "torch")
