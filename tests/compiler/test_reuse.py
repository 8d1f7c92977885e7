"""Programs and plans whose passes read what earlier passes have left in memory."""

from __future__ import annotations

import numpy as np
import pytest
from oracles.programs import program, run, x, y
from support import spec

from fibration.backends.c import emit
from fibration.compiler.ir import BATCH, Const, Key, Map, Pull, Quantile, Scalar, arg, const, scalar
from fibration.compiler.reuse import read_quantile_values
from fibration.language.atoms import Stratum, token_log_ratio
from fibration.language.operators import absolute
from fibration.language.statistics import quantile
from fibration.pipeline import programs


def apart(first: Scalar, second: Scalar) -> Scalar:
    return scalar("mul", scalar("sub", first, second), const(3.0))


VALUE = Map(apart(arg(0), arg(1)), (x, y))
MEDIAN = Quantile("coarse", (VALUE,), Const(0.5, "coarse"))
# formulas of y, x and the median of 3 (x - y), in this order
REPEATS = {
    "once": scalar("sub", apart(arg(1), arg(0)), arg(2)),
    "twice": scalar("mul", apart(arg(1), arg(0)), scalar("sub", apart(arg(1), arg(0)), arg(2))),
    "beside an argument": scalar("add", scalar("sub", apart(arg(1), arg(0)), arg(2)), arg(0)),
}
OTHERS = {
    "of other arguments": scalar("sub", apart(arg(0), arg(1)), arg(2)),
    "only a part": scalar("sub", scalar("sub", arg(1), arg(0)), arg(2)),
}


@pytest.mark.parametrize("word", [*REPEATS, *OTHERS])
def test_a_formula_reads_the_value_of_a_quantile_that_it_repeats(word: str) -> None:
    body = {**REPEATS, **OTHERS}[word]
    given = program(median=MEDIAN, out=Map(body, (y, x, Pull("fine", "coarse", MEDIAN))))
    found = read_quantile_values(given).validate()
    assert (VALUE in found.outputs[Key("out")].operands) is (word in REPEATS)
    inputs = {name: np.random.default_rng(i).normal(size=6) for i, name in enumerate("xy")}
    before, after = run(given, **inputs), run(found, **inputs)
    for key, value in before.items():
        np.testing.assert_array_equal(after[key], value)


@pytest.mark.parametrize("over", ["rows", "batch"])
def test_a_pass_reads_the_values_of_a_quantile_over_its_segments(over: str) -> None:
    """And computes in float64 nothing but the comparison. Values over the batch would have to come from memory."""
    h = spec("grpo")
    drift = absolute(token_log_ratio)
    bound = quantile(drift, 0.95, over=h.rows if over == "rows" else Stratum(BATCH))
    made = programs(h.replace(objective=h.objective.keep(drift <= bound)))["objective"]
    planned = emit.plan(made, h.rows.name)
    (value,) = (n.values[0] for n in made.nodes() if isinstance(n, Quantile))
    first, last = (step for sweep in planned.sweeps for step in sweep.passes)
    assert first.aside == (value,)
    assert last.found == ((value,) if over == "rows" else ())
    (ratio,) = value.operands
    assert ratio in last.values
    assert (ratio in planned.precise_in(last)) is (over == "batch")
    assert ratio in planned.precise_in(first)
    assert (f"find {planned.names[value]} where it was set aside" in str(planned)) is (over == "rows")
