"""Faults planted in `lower`, which verdicts and kernels share: each shows beside the definition in fractions.

The definition (`fuzz.world`) reads the declaration alone, so that no fault of `lower` reaches it.
"""

import random
from unittest import mock

import numpy as np
import pytest
import torch
from fuzz import operators
from fuzz.batches import Batches
from fuzz.world import World
from support import spec

from fibration import pipeline
from fibration.compiler.ir import Const, Detach, binary
from fibration.compiler.lower import Penalties, Terms, _Lowering
from fibration.language.report import Report
from fibration.runtime.operator import Operator

FAULTS = {  # of a method of a class: what it gives in the place of what it gave
    "a mean counts twice": (_Lowering, "mean", lambda f: lambda s, t, c: binary("mul", f(s, t, c), Const(2.0, t.name))),
    "residuals keep their mean": (_Lowering, "residuals", lambda f: lambda s, c: {v.name: s.density[v.name, c] for v in s.order}),
    "coarser levels are lost": (_Lowering, "coarser", lambda f: lambda s, v, of: iter(())),
    "channels exchange their gates": (_Lowering, "gate", lambda f: lambda s, v, c, x: f(s, v, {"+": "-", "-": "+"}.get(c, c), x)),
    "a ratio is one too large": (_Lowering, "recover", lambda f: lambda s, v, d: binary("add", f(s, v, d), Const(1.0, v))),
    "a penalty is forgotten": (_Lowering, "penalised", lambda f: lambda s, o: (f(s, o), o)[1]),
    "a weight has a gradient": (_Lowering, "of_tokens", lambda f: lambda s, w, v, n: n),
    "a penalty's mean has none": (Penalties, "maybe_detach", lambda f: lambda s, a, n: Detach(n)),
    "the normaliser is of all rows": (Terms, "normaliser", lambda f: lambda s, o: Const(1.0, s.rows)),
    "every token is kept": (Terms, "conditions", lambda f: lambda s, v, c: Const(1.0, v)),
}  # fmt: skip
# Levels with channels; a penalty with a mean; a weight of the current policy; tokens that are kept.
LOSSES = ("fiberpo_domain", "kimi_k15", "ctpo", "icepop")


def differs(name: str) -> bool:
    """Whether an operator that is made now has another J or gradient than the definition, on one of four batches."""
    h = spec(name)
    source = pipeline.emit(h, "torch", pipeline.programs(h))
    op = Operator(h, Report(h, ()), "torch", source.source, source.programs, pipeline.load(source))
    draw = Batches(h, random.Random(name), 12)
    with mock.patch.object(operators, "operator", return_value=op):
        for batch in (draw() for _ in range(4)):
            world, made = World(h, batch), operators.call(h, batch)
            advantages = torch.tensor([float(world.advantage(i)) for i in range(world.n)], dtype=torch.float64)
            loss, gradient = made.whole(advantages)
            right = [-float(v) for v in (world.objective, *world.coefficients)]
            if not np.allclose([loss, *gradient], right, 1e-9, 1e-12):
                return True
    return False


@pytest.mark.sampled
@pytest.mark.parametrize("name", LOSSES)
def test_without_a_fault_nothing_differs(name):
    assert not differs(name)


@pytest.mark.sampled
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_lower_is_noticed(fault):
    where, method, broken = FAULTS[fault]
    with mock.patch.object(where, method, broken(getattr(where, method))):
        assert any(map(differs, LOSSES))
