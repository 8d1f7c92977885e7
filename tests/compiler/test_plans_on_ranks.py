"""Plans for a batch over ranks: the stages of collectives, and sums that do not depend on the cut."""

import functools
import math
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hierarchies.random_quivers import COUNT, batch_for, quiver
from hypothesis import given
from hypothesis import strategies as st
from oracles.plans_on_ranks import on_ranks
from support import OF_EVERY_KIND, SPECS, operator, packed, programs, random_hierarchy, spec, spread_batch
from thorough import ALL, examples, some

from fibration import pipeline
from fibration.compiler.fuse import sweeps
from fibration.compiler.interpret import Sizes, interpret, value_of
from fibration.compiler.ir import Const, Input, Key, Map, Push, arg, const, scalar
from fibration.compiler.plan import Coarse, Collective, Spread, Sweep
from fibration.compiler.program import Program
from fibration.compiler.rules import simplify
from fibration.compiler.spread import BEYOND, RANGE, TOKENS, UNITS, bound, exact, parts
from fibration.errors import BackendError
from fibration.pipeline import bounded, spread_of

CHAINS = ("fiberpo", "fiberpo_domain", "fiberpo_turns")
ONE_LEVEL = ("cispo", "dapo", "dr_grpo", "grpo", "sapo", "truly_ppo")  # as ppo is
QUIVERS = [f"quiver {seed}" for seed in some(range(COUNT), 18, 1)]
NAMES = [
    *(n for n in OF_EVERY_KIND if ALL or n not in ONE_LEVEL),
    *QUIVERS,
    *(f"random {s}" for s in some(range(16), 8, 2)),
]


def hierarchy(name):
    kind, _, seed = name.partition(" ")
    return {"quiver": quiver, "random": random_hierarchy}[kind](int(seed)) if seed else spec(name)


@functools.cache
def every_program(h):
    """The programs, also those that bounds of the levels allow."""
    found = bounded(h, programs(h), h.verify()) if h.name in SPECS else None
    return {**programs(h), **({} if found is None else found[0])}


@functools.cache
def plans(h, cut):
    return {name: sweeps(p, h.rows.name, spread=spread_of(h, cut)) for name, p in every_program(h).items()}


def case(h, seed):
    """A batch off policy at every level, its index, and all that the programs read, as vectors."""
    op, generator = operator(h), np.random.default_rng(seed)
    batch = spread_batch((7, 1, 4, 2, 5, 2, 3, 6)) if h.name in CHAINS else batch_for(h, seed)
    drift = generator.normal(size=len(batch.lengths))[batch.row]
    batch = batch.with_x(drift + generator.normal(scale=0.3, size=batch.tokens))
    layout = packed(op, batch)
    x, advantages = torch.from_numpy(batch.x), layout.tensor(batch.advantages)
    log_probs = (x - 1.5, torch.full_like(x, -1.5))
    inputs = {}
    for program in ("evaluate", "gate"):
        inputs |= op.inputs(layout.index, x, advantages, batch.parameters, program, log_probs)
    inputs = {i: v.numpy() for i, v in inputs.items()}
    for i in programs(h)["gate_adjoint"].inputs:
        if i.kind == "cotangent":
            inputs[i] = np.cos(np.arange(layout.index.size[i.over]))
    return batch, layout.index, inputs


def parted(h, index, batch, cut, size, seed):
    """The rank of every token, by leaf: of its own, or that of its row; the last rank has nothing."""
    generator = np.random.default_rng(seed)
    of = generator.integers(0, size - 1, batch.tokens if cut else len(batch.lengths))
    of_token = of if cut else of[batch.row]
    return {
        leaf: of_token[slice(None) if t is None else t.numpy()]
        for leaf in index.leaves
        for t in [index.tokens_of(leaf)]
    }


@pytest.mark.sampled
@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
@pytest.mark.parametrize("name", NAMES)
def test_every_rank_has_the_results_of_one_process(name, cut):
    """In bits, whoever has what; and what one process gives without ranks, to rounding."""
    h = hierarchy(name)
    batch, index, inputs = case(h, 7)
    for number, (program, plan) in enumerate(plans(h, cut).items()):
        one = {leaf: np.zeros(index.size[leaf], int) for leaf in index.leaves}
        (alone,) = on_ranks(plan, index, inputs, one, 1)
        original = every_program(h)[program]
        expected = interpret(original, inputs, index.sizes(original.edges))
        for key, vector in expected.items():
            np.testing.assert_allclose(alone[key], vector, rtol=1e-9, atol=1e-12, err_msg=str(key))
        if name in CHAINS and program == "evaluate":  # every gate passes some elements, and stops others
            for level in h.order:
                passed, stopped = (
                    sum(alone[k].sum() for k in alone if k.word in words and k.stratum == level.name)
                    for words in (("passed",), ("rolled_back", "zeroed", "limited"))
                )
                assert passed and stopped, level
        size = 4
        rank_of = parted(h, index, batch, cut, size, number)
        for rank, found in enumerate(on_ranks(plan, index, inputs, rank_of, size)):
            for key, node in plan.program.outputs.items():
                mine = rank_of[node.stratum] == rank if node.stratum in rank_of else slice(None)
                np.testing.assert_array_equal(found[key], alone[key][mine], err_msg=f"{key} on rank {rank}")


@pytest.mark.parametrize("name", NAMES)
def test_ranks_communicate_once_before_a_coarse_stage(name):
    """Over strata alone that are coarser than tokens, with every value once."""
    h = hierarchy(name)
    for cut in (False, True):
        for plan in plans(h, cut).values():
            leaves = plan.program.leaves
            gathered = [n for c in plan.collectives for n in c.values]
            assert all(n.stratum not in leaves for n in gathered)
            assert len(set(gathered)) == len(gathered)
            kinds = [type(s) for s in plan.stages]
            for i, kind in enumerate(kinds):
                if kind is Collective:
                    assert i + 1 == len(kinds) or kinds[i + 1] is Coarse
            swept = "".join({Sweep: "s", Coarse: "c", Collective: "|"}[k] for k in kinds)
            assert "||" not in swept.replace("c", "")  # between two of them there are sums over tokens
            assert len(plan.sections) == len(plan.collectives) + 1
            for c in plan.collectives:
                assert c.units.keys() == {p for p in c.parts if p.reduce == "sum"}
                assert all(plan.spread.cuts(p, leaves) for p in c.parts)
                assert all(isinstance(n, Input) or n.stratum in plan.spread.whole for n in c.whole)


def test_the_number_of_collectives_follows_the_levels():
    """Two levels meet once, any depth above them twice; and bytes grow with the values of a level, of which a few."""
    for name, whole, cut in (("fiberpo", 1, 2), ("fiberpo_domain", 2, 2), ("ppo", 1, 1)):
        found = [len(plans(spec(name), way)["objective"].collectives) for way in (False, True)]
        assert found == [whole, cut], name
    sizes = [len(c.values) for c in plans(spec("fiberpo_domain"), False)["objective"].collectives]
    assert sizes == [2, 4]


def test_plans_are_printed_as_the_docs_show_them():
    text = (Path(__file__).parents[2] / "docs" / "backends.md").read_text()
    shown = re.findall(r"^```\n.*?^(plan of .*?)^```$", text, re.MULTILINE | re.DOTALL)
    printed = [pipeline.plan(spec("fiberpo"), "gate"), pipeline.plan(spec("fiberpo_domain"), "objective", "whole")]
    for block, text in zip(shown, printed, strict=True):
        pattern = "[^\n]*".join(map(re.escape, block.removesuffix("    ...\n").rstrip().split("...")))
        assert re.match(pattern, str(text))
    for wrong in (("gates", ""), ("gate", "some")):
        with pytest.raises(BackendError, match="one of"):
            pipeline.plan(spec("fiberpo"), *wrong)


def test_a_plan_prints_its_collectives():
    text = str(plans(spec("fiberpo"), False)["objective"])
    assert "  collective\n    2 numbers per trajectory\n      gather " in text
    text = str(plans(spec("fiberpo"), True)["objective"])
    assert "put together sum_of_s_token_plus_part_5, sum_of_s_token_plus_part_4" in text
    assert "s_token_plus_part_1" in text


# ---------------------------------------------------------------- exact sums

TERMS = st.one_of(
    st.floats(-RANGE, RANGE),
    st.floats(-1e-3, 1e-3),
    st.builds(math.ldexp, st.floats(-1, 1), st.integers(-90, 69)),
    st.sampled_from([0.0, -0.0, RANGE, -RANGE, 2.0**-80, -(2.0**-81), 512.0, 2.0**10 - 2.0**-20]),
)


def cut_up(x):
    """The parts of numbers, as the program computes them."""
    x = np.asarray(x, float)
    values = {X: x}

    def value(node):
        if node not in values:
            values[node] = value_of(node.body, lambda i: value(node.inputs[i]))
        return values[node]

    with np.errstate(all="ignore"):
        return [value(p) for p in parts(X)]


X = Input("x", "token", "x")


@given(st.lists(TERMS, min_size=1, max_size=40), st.randoms(use_true_random=False))
@examples(120)
def test_parts_of_terms_add_up_to_the_same_bits_in_any_order(terms, random):
    found = cut_up(terms)
    for part, unit in zip(found, UNITS, strict=True):
        multiples = part / unit
        assert (multiples == np.round(multiples)).all()
        assert (abs(multiples) * TOKENS <= 2.0**53).all()
        other = list(part)
        random.shuffle(other)
        assert sum(other, 0.0) == sum(part, 0.0) == math.fsum(part)
    whole = sum(Fraction(p) for part in found for p in part)
    assert abs(whole - sum(map(Fraction, terms))) <= len(terms) * Fraction(UNITS[-1]) / 2


def test_a_term_out_of_range_is_nan():
    for x in (math.inf, -math.inf, math.nan, math.nextafter(RANGE, math.inf), -2.0 * RANGE):
        assert all(np.isnan(cut_up([x])))
    assert not any(np.isnan(cut_up([RANGE])))


def beyond(values, whole=frozenset()):
    """How many elements have a term out of range, of a sum of these over three."""
    fine, parents = "token", np.array([0, 0, 1, 2, 2])
    p = Program("p", (fine,), {Key("y"): Push(fine, "trajectory", X)}, {})
    made, units = exact(p, Spread(whole))
    edges = {(fine, "trajectory"): parents, ("trajectory", "batch"): np.zeros(3, int)}
    found = interpret(made, {X: np.array(values)}, Sizes(edges, {fine: 5, "trajectory": 3, "batch": 1}))
    return found, units


def test_elements_with_terms_out_of_range_are_counted():
    found, units = beyond([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found[BEYOND].tolist() == [0.0]
    assert found[Key("y")].tolist() == [3.0, 3.0, 9.0]
    assert sorted(units.values()) == sorted(UNITS)
    found, _ = beyond([1e21, -1e21, 3.0, math.inf, 5.0])
    assert found[BEYOND].tolist() == [2.0]
    found, units = beyond([1e21, -1e21, 3.0, 4.0, 5.0], frozenset({"trajectory"}))
    assert not units
    assert found.keys() == {Key("y")}


def test_simplification_keeps_explicit_rounding():
    for part in parts(X):
        body = part.body
        assert simplify(body) is body


def test_whole_numbers_are_summed_without_splitting():
    x = arg(0)
    is_small = scalar("lt", x, const(1.0))
    flag = Map(scalar("select", is_small, const(1.0), const(0.0)), (X,))
    assert bound(flag) == 1.0
    assert bound(Map(scalar("sub", const(1.0), arg(0)), (flag,))) == 2.0
    assert bound(Map(scalar("mul", arg(0), scalar("add", arg(0), const(-3.0))), (flag,))) == 4.0
    assert bound(Map(scalar("sub", arg(0), arg(0)), (X,))) == 0.0
    assert bound(Const(-3.0, "token")) == 3.0
    for not_whole in (X, Const(0.5, "token"), Const(math.nan, "token"), Const(math.inf, "token")):
        assert bound(not_whole) is None
    for body in (x, scalar("div", x, x), scalar("select", is_small, x, const(1.0)), scalar("sub", x, const(1.0))):
        assert bound(Map(body, (X,))) is None
    p = Program("p", ("token",), {Key("n"): Push("token", "trajectory", flag)}, {})
    made, units = exact(p, Spread())
    assert list(units.values()) == [1.0]
    assert made.outputs == p.outputs
