"""Scheduling, and the source that is emitted in that order."""

import ast

import numpy as np
import pytest
import torch
from hierarchies.levels import one_level
from hypothesis import given, settings
from oracles.definition import exact
from support import SPECS, batches, coefficients, operator, packed, random_hierarchy, raw_programs, spec, spread_batch

from fibration import (
    aggregate_gate,
    clip_gate,
    dual_clip_gate,
    log_clip_gate,
    zero_gate,
)
from fibration import pipeline as compiling
from fibration.compiler.ir import (
    Scalar,
    arg,
    const,
)
from fibration.compiler.optimise import optimise
from fibration.compiler.schedule import schedule


@pytest.mark.sampled
@pytest.mark.parametrize("name", SPECS)
def test_schedules_are_topological_with_unique_names(name):
    for p in raw_programs(spec(name)).values():
        for stage in (p, optimise(p)):
            s = schedule(stage, frozenset({"ratio", "x"}))
            names = [step.name for step in s.steps]
            assert len(set(names)) == len(names)
            assert all(n.isidentifier() for n in names)
            assert not {"ratio", "x"} & set(names)
            done, dropped = set(), set()
            for step in s.steps:
                operands = {s.names[o] for o in step.node.operands}
                assert operands <= done - dropped
                done.add(step.name)
                dropped |= set(step.dead)
            assert set(s.results.values()) <= done - dropped
            assert set(s.results) == set(stage.outputs)


def test_only_token_vectors_are_dropped():
    p = optimise(raw_programs(spec("fiberpo_domain"))["evaluate"])
    s = schedule(p)
    by_name = {step.name: step.node for step in s.steps}
    dropped = [n for step in s.steps for n in step.dead]
    assert dropped
    assert {by_name[n].stratum for n in dropped} == {"token"}
    assert len(set(dropped)) == len(dropped)


@pytest.mark.sampled
@pytest.mark.parametrize("name", [*SPECS, "random"])
def test_emitted_source_compiles_and_imports_only_torch(name):
    for h in [spec(name)] if name != "random" else [random_hierarchy(s) for s in range(8)]:
        source = compiling.generate(h, "torch").source
        tree = ast.parse(source)
        imported = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                imported |= {a.name for a in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module)
        assert imported <= {"__future__", "math", "typing", "torch"}
        assert not {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} & {"eval", "exec", "open", "__import__"}
        functions = {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}
        assert {"evaluate", "objective", "gate", "gate_adjoint", "levels"} <= functions
        assert source == compiling.generate(h, "torch").source


def test_a_standalone_module_needs_nothing_but_torch():
    """The generated source, executed alone, gives what the operator gives."""
    op = operator(spec("fiberpo"))
    batch = spread_batch()
    layout = packed(op, batch)
    module = {"__name__": "standalone"}
    exec(compile(op.source, "standalone", "exec"), module)
    parent = torch.from_numpy(batch.row)
    n = torch.tensor(batch.lengths, dtype=torch.float64)
    one = torch.zeros(1, dtype=torch.int64)
    over = {
        ("token", "trajectory"): module["fibre"](parent, 6),
        ("token", "batch"): module["fibre"](one.expand(batch.tokens), 1),
        ("trajectory", "batch"): module["fibre"](one.expand(6), 1),
    }
    inputs = {
        "log_prob": torch.from_numpy(batch.x),
        "old_log_prob": torch.zeros(batch.tokens, dtype=torch.float64),
        "advantage": torch.from_numpy(batch.advantages),
        "epsilon": torch.tensor([0.05], dtype=torch.float64),
        "count_token_over_trajectory": n,
        "count_trajectory_over_batch": torch.tensor([6.0], dtype=torch.float64),
        "C_trajectory_plus": torch.full((6,), 0.2, dtype=torch.float64),
        "C_trajectory_minus": torch.full((6,), 0.1, dtype=torch.float64),
    }
    found = module["objective"](inputs, over)
    expected, objective = coefficients(op, layout, batch)
    assert found["coefficients"].tolist() == expected.tolist()
    assert float(found["objective"]) == objective


def test_free_text_in_a_header_stays_a_comment():
    reason = "{functions} {header} \n import os # \x85 \u2028 ''' \"\"\" \\"
    h = spec("gspo").replace(gives_up={"first_order": reason})
    source = compiling.generate(h, "torch").source
    ast.parse(source)
    assert source.count("def evaluate") == 1
    batch = spread_batch(per_row=True)
    a, b = operator(h), operator(spec("gspo"))
    assert coefficients(a, packed(a, batch), batch)[0].tolist() == coefficients(b, packed(b, batch), batch)[0].tolist()


def test_a_hierarchy_that_gates_nothing_compiles():
    h = one_level(zero_gate())
    op = operator(h)
    batch = spread_batch()
    c, objective = coefficients(op, packed(op, batch), batch)
    assert c.tolist() == [0.0] * batch.tokens
    assert objective == pytest.approx(batch.advantages.mean(), rel=1e-14)
    layout = packed(op, batch)
    assert op.gate(layout.tensor(batch.x), layout.index).tolist() == [1.0] * batch.tokens


@pytest.mark.sampled
@pytest.mark.parametrize(
    "gate",
    [dual_clip_gate(0.2, 0.3, 3), log_clip_gate(0.2, 0.3), clip_gate(0.1), aggregate_gate(0.1, rollback=4)],
    ids=repr,
)
def test_numbers_in_gates_reach_the_generated_code(gate):
    h = one_level(gate)
    batch = spread_batch(scale=0.5)
    op = operator(h)
    c, _ = coefficients(op, packed(op, batch), batch)
    direction = np.sin(np.arange(batch.tokens))
    assert c @ direction == pytest.approx(exact(h, batch, direction).slope, rel=1e-12)


@settings(max_examples=30)
@given(batch=batches())
def test_interned_scalars_do_not_leak_between_hierarchies(batch):
    """Programs share nodes; two hierarchies with one shape and different numbers stay apart."""
    a, b = (one_level(clip_gate(v)) for v in (0.125, 0.25))
    for h, bound in ((a, 0.125), (b, 0.25)):
        op = operator(h)
        gated = np.log(packed(op, batch).read(op.gate(packed(op, batch).tensor(batch.x), packed(op, batch).index)))
        assert gated == pytest.approx(np.clip(batch.x, -bound, bound), abs=1e-15)


def test_a_scalar_prints_as_a_call():
    assert str(Scalar("add", (arg(0), const(2)))) == "add($0, 2.0)"


@pytest.mark.parametrize("name", ["grpo", "fiberpo_domain"])
def test_values_are_named_after_levels_gates_and_results(name):
    planned = compiling.plan(spec(name), "evaluate")
    words = set(planned.names.values())
    assert not [word for word in words if "value_" in word]
    assert {"share_trajectory", "tv_of_token", "max_of_minus_ratio"} <= words
    deepest = {"grpo": "sum_of_is_flat_token_over_batch", "fiberpo_domain": "sum_of_is_flat_token_plus_over_domain"}
    assert deepest[name] in words
