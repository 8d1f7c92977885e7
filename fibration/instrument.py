"""IR → IR: what a training run wants to see of every level, as sums that add up over ranks.

Every stratum and channel gets, per element of the root stratum: how many elements passed, rolled back, were zeroed,
limited or attenuated, and the sum and maximum of the drift (the absolute residual in intensive coordinates). The
counts that they are divided by are counts of the hierarchy. The batch gets the range of the gated ratio and the TV and
KL estimates (eq:dhat_traj, eq:dhat_kl_traj).
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from fibration.derivative import derivative
from fibration.ir import BATCH, Const, Input, Map, Node, Program, Push, Scalar, arg, const, count_input, scalar

# What a gate did to one residual, decided by its value and slope there; every element is in exactly one regime.
REGIMES = ("passed", "rolled_back", "zeroed", "limited", "attenuated")
ZERO = const(0.0)
UNCHANGED = 1e-6  # relative: where a gate's scale does not cancel, `(ρ/m)·m` differs from ρ by a float32 rounding


def absolute(x: Scalar) -> Scalar:
    return scalar("select", scalar("le", ZERO, x), x, scalar("neg", x))


def equal(a: Scalar, b: Scalar) -> Scalar:
    return scalar("and", scalar("le", a, b), scalar("le", b, a))


def slope_of(gated: Node, residual: Node) -> Scalar | None:
    """The gate's slope as a body over the gate's own operands, or None where it is constant in its residual."""
    if gated is residual:
        return const(1.0)
    if isinstance(gated, Map) and residual in gated.inputs:
        return derivative(gated.body, gated.inputs.index(residual))
    return None


def regime_nodes(residual: Node, gated: Node) -> dict[str, Node]:
    """Zeros and ones that say what a gate did: `passed`; else `rolled_back` where its slope is negative, or `flat`
    where it is 0, of which `zeroed` are those that became 0. The other regimes are differences of these.
    """
    value = const(gated.value) if isinstance(gated, Const) else arg(1)
    both = (residual,) if isinstance(gated, Const) else (residual, gated)
    moved = absolute(scalar("sub", value, arg(0)))
    passed = Map(_indicator(scalar("le", moved, scalar("mul", const(UNCHANGED), absolute(arg(0))))), both)

    def unless_passed(condition: Scalar, operands: tuple[Node, ...]) -> Node:
        stopped = scalar("sub", const(1.0), arg(len(operands)))
        return Map(scalar("select", condition, stopped, ZERO), (*operands, passed))

    slope = slope_of(gated, residual)
    read = gated.inputs if isinstance(gated, Map) and slope is not None and gated is not residual else (residual,)
    body = ZERO if slope is None else slope
    back = unless_passed(scalar("lt", body, ZERO), read)
    flat = unless_passed(equal(body, ZERO), read)
    zeroed = Map(scalar("select", equal(value, ZERO), arg(len(both)), ZERO), (*both, flat))
    return {"passed": passed, "rolled_back": back, "flat": flat, "zeroed": zeroed}


def _indicator(condition: Scalar) -> Scalar:
    return scalar("select", condition, const(1.0), ZERO)


def _difference(first: Node, *others: Node) -> Node:
    body = arg(0)
    for i in range(len(others)):
        body = scalar("sub", body, arg(i + 1))
    return Map(body, (first, *others))


def instrument(program: Program, levels: list[tuple[str, str]], chain: list[str], row_path: list[str]) -> Program:
    """`program` with metric outputs. `levels` are (stratum, channel word), `chain` runs root first."""
    outputs: dict[str, Node] = {k: v for k, v in program.outputs.items() if not k.startswith(("residual_", "gated_"))}
    root = chain[0]

    # A hierarchy of tokens alone has nothing above them to report by: its sums are over the batch.
    up = [*row_path, BATCH] if root == program.leaf else list(reversed(chain))

    def to_root(node: Node, reduce: str = "sum") -> Node:
        return _along(up[up.index(node.stratum) :], node, reduce)

    changed: list[Node] = []
    for stratum, word in levels:
        residual, gated = program.outputs[f"residual_{stratum}{word}"], program.outputs[f"gated_{stratum}{word}"]
        seen = regime_nodes(residual, gated)
        sums = {name: to_root(node) for name, node in seen.items()}
        every = Const(1.0, stratum) if stratum == up[-1] else count_input(stratum, up[-1])
        sums["limited"] = _difference(sums["flat"], sums["zeroed"])
        sums["attenuated"] = _difference(every, sums["passed"], sums["rolled_back"], sums["flat"])
        outputs |= {f"{name}_{stratum}{word}": sums[name] for name in REGIMES}
        drift = Map(absolute(arg(0)), (residual,))
        outputs[f"drift_{stratum}{word}"] = to_root(drift)
        outputs[f"peak_{stratum}{word}"] = to_root(drift, "max")
        if stratum == program.leaf and not isinstance(gated, Const):
            changed.append(seen["passed"])

    # A token is clipped when any of its channels did not pass; a gate that removes the level altogether clips nothing.
    changed = changed or [Const(1.0, program.leaf)]
    body = arg(0)
    for i in range(1, len(changed)):
        body = scalar("mul", body, arg(i))
    clipped = Map(scalar("sub", const(1.0), body), tuple(dict.fromkeys(changed)))
    outputs["clipped"] = to_root(clipped)

    x = next(i for i in program.inputs if i.name == "log_ratio")
    ratio = program.outputs["gated_ratio"]
    outputs["ratio_max"] = _along([*reversed(chain), BATCH], ratio, "max")
    outputs["ratio_min_negated"] = _along([*reversed(chain), BATCH], Map(scalar("neg", arg(0)), (ratio,)), "max")
    deviation = Map(absolute(scalar("expm1", arg(0))), (x,))
    rows = row_path[-1]
    tokens = count_input(program.leaf, rows)
    for name, node in (("tv", deviation), ("kl", Map(scalar("neg", arg(0)), (x,)))):
        mean = Map(scalar("div", arg(0), arg(1)), (_along(row_path, node, "sum"), tokens))
        outputs[name] = Push(rows, BATCH, mean)
    return replace(program, outputs=outputs).validate()


def count_nonfinite(program: Program, row_path: list[str]) -> Program:
    """`program` with the output `nonfinite`: how many rows have an infinite or undefined log ratio or advantage.

    A gate that closes turns them into an innocent 0, so they are counted before any gate sees them.
    """
    x = Input("log_ratio", program.leaf, "log_ratio")  # to be checked even where no gate lets it pass
    read = [x, *(i for i in program.inputs if i == Input("advantage", program.leaf, "advantage"))]
    nothing = [scalar("sub", arg(i), arg(i)) for i in range(len(read))]  # 0, or NaN
    body = nothing[0] if len(nothing) == 1 else scalar("add", *nothing)
    sums = _along(row_path, Map(body, tuple(read)), "sum")
    lost = Map(scalar("select", equal(arg(0), ZERO), ZERO, const(1.0)), (sums,))
    outputs = {**program.outputs, "nonfinite": Push(row_path[-1], BATCH, lost)}
    return replace(program, outputs=outputs).validate()


def _along(path: list[str], node: Node, reduce: str) -> Node:
    for source, target in itertools.pairwise(path):
        node = Push(source, target, node, reduce)
    return node
