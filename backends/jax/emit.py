"""Writes programs as one standalone, readable JAX module, with static shapes.

The module computes in float64 if `jax_enable_x64` is set, else in float32. The library never imports JAX.
"""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from fibration.backends.bodies import Language, call
from fibration.backends.jax.signature import Signature
from fibration.backends.vectors import FUNCTION, constant, function, statement
from fibration.compiler.arguments import Caller
from fibration.compiler.ir import Const, Key, Node, Quantile, Scan
from fibration.compiler.program import Program
from fibration.compiler.schedule import Schedule, Step, schedule
from fibration.errors import BackendError

# One row per scalar operator of the IR, except `select`.
OPERATORS: Mapping[str, str] = {
    "add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "div": "{} / {}", "neg": "-{}",
    "stop": "lax.stop_gradient({})", "exp": "jnp.exp({})",
    "log": "jnp.log({})", "expm1": "jnp.expm1({})", "log1p": "jnp.log1p({})",
    "tanh": "jnp.tanh({})", "sigmoid": "jax.nn.sigmoid({})", "sqrt": "jnp.sqrt({})",
    "softplus": "jnp.logaddexp({}, 0.0)", "atan": "jnp.arctan({})",
    "lt": "{} < {}", "le": "{} <= {}", "and": "{} & {}", "or": "{} | {}", "not": "~{}",
}  # fmt: skip
# Words that the skeleton uses. No value of a program has one as its name.
SKELETON_WORDS = """
jax jnp lax math Any Array NamedTuple WIDTH Fibre blocks push pull spread Layout with_gradient quantile scan inputs over
at
""".split()
RESERVED = frozenset({*keyword.kwlist, *dir(builtins), *SKELETON_WORDS})

MODULE = '''\
{header}
"""The loss {name} in JAX, without the library that wrote it.

- `loss` is -J. Its gradient with respect to `log_probs` is that of the generated coefficients.
- `value_and_coefficients` returns J and ∂J/∂log π of every token.
{rewards}
Under `jax.jit`, the numbers of elements (`n_...`) are static: name them in `static_argnames`. Everything is computed in
float64 if `jax_enable_x64` is set, else in float32. A NaN or an infinity at an unmasked token makes J NaN, and the
coefficients of the tokens that read it. Labels that are out of range or disagree make every result NaN.
"""

{parts}
'''
# The text of functions.py beside this file, from its imports on.
_TEXT = Path(__file__).with_name("functions.py").read_text()
FUNCTIONS = _TEXT[_TEXT.index("from __future__") :].split("\n\n\n")

CALL = """\
    at = Layout({leaf!r}, {rows!r}, {shape}, mask, segments, {n_rows}, {labels})
    inputs = {{
{inputs}
    }}
    over = {{
{edges}
    }}
    found = {function}_of_vectors(inputs, over)
"""
LOSS = '''
def loss(*tensors: Any, **named: Any) -> Array:
    """-J, float []. Takes the arguments of `value_and_coefficients`. Gradients flow into `log_probs` alone."""
    return -value_and_coefficients(*tensors, **named)[0]
'''


def plan(program: Program, rows: str, spread: object = None) -> Schedule:
    """The schedule of a program: one vector after the other."""
    return schedule(program, RESERVED)


def emit(header: str, schedules: Mapping[str, Schedule], titles: Mapping[str, str], caller: Caller) -> str:
    """The source of a module with the loss, and with advantages from rewards if the hierarchy has a formula of them.

    Raises BackendError for a hierarchy that needs several kinds of tokens, a projection, or an order across rows.
    """
    from_rewards = next((name for name in ("advantages_of_rows", "advantages") if name in schedules), None)
    chosen = {name: schedules[name] for name in ("objective", from_rewards) if name is not None}
    for s in chosen.values():
        _refuse(s.program, caller)
    taken = RESERVED | {"found", "dtype", "coefficients", *(f"{name}_of_vectors" for name in chosen)}
    made = {name: Signature(s.program, caller, taken) for name, s in chosen.items()}
    kinds = {type(n) for s in chosen.values() for n in s.program.nodes()}
    unused = tuple(f"def {word}(" for word, kind in (("quantile", Quantile), ("scan", Scan)) if kind not in kinds)
    parts = [part for part in FUNCTIONS if not part.startswith(unused)]
    parts += [_function(f"{name}_of_vectors", s, titles[name]) for name, s in chosen.items()]
    parts += [_objective(made["objective"], chosen["objective"]), LOSS]
    parts += [_advantages(made[name], s, name) for name, s in chosen.items() if name == from_rewards]
    rewards = "- `advantages_from_rewards` returns the advantages to pass to both.\n" if from_rewards else ""
    written = "\n\n\n".join(part.strip("\n") for part in parts) + "\n"
    text = MODULE.format(header="{header}", name=caller.name, rewards=rewards, parts=written)
    return text.replace("{header}", header.rstrip())  # last, because the header is free text


def _objective(s: Signature, schedule: Schedule) -> str:
    value, coefficients = (schedule.program.called[Key(word)] for word in ("objective", "coefficients"))
    title = "J, and its coefficients ∂J/∂log π: float [], and floats in the shape of `log_probs`; 0 at masked tokens."
    lines = [
        "dtype = jnp.promote_types(jnp.result_type(log_probs), jnp.float32)",
        f"coefficients = at.result(found[{coefficients!r}], {s.leaf!r}, dtype)",
        f"value = at.result(found[{value!r}], 'batch', dtype)",
        "return with_gradient(jnp.asarray(log_probs, dtype), value, coefficients), coefficients",
    ]
    return _for_callers("value_and_coefficients", s, "objective", title, "tuple[Array, Array]", lines)


def _advantages(s: Signature, schedule: Schedule, name: str) -> str:
    (key,) = (k for k in schedule.program.outputs if k.word == "advantages")
    stratum = schedule.program.outputs[key].stratum
    title = f"The advantages, {'per token' if stratum == s.leaf else f'one per {stratum}'}; 0 where no token is."
    lines = [f"return at.result(found[{schedule.program.called[key]!r}], {stratum!r}, at.real)"]
    return _for_callers("advantages_from_rewards", s, name, title, "Array", lines)


def _for_callers(name: str, s: Signature, function: str, title: str, returns: str, lines: list[str]) -> str:
    """A function with a caller's arguments. Its `lines` read what the function of vectors has found."""
    program = s.program
    by_position = [f"    {a.name}: Any,\n" for a in s.arguments if a.by_position]
    others = sorted((a for a in s.arguments if not a.by_position), key=lambda a: bool(a.default))
    by_name = [f"    {a.name}: Any{' = ' + a.default if a.default else ''},\n" for a in others]
    labels = ", ".join(f"{stratum!r}: ({name}, {n}, {at!r})" for stratum, (name, n, at) in s.labels.items())
    call = CALL.format(
        leaf=s.leaf,
        rows=s.caller.rows,
        shape=s.shape,
        n_rows=s.rows,
        labels=f"{{{labels}}}",
        inputs="\n".join(f"        {program.given[i]!r}: {s.vectors[i]}," for i in program.inputs),
        edges="\n".join(f"        {e!r}: at.fibre({e[0]!r}, {e[1]!r})," for e in program.edges),
        function=function,
    )
    return FUNCTION.format(
        name=name,
        arguments="\n" + "".join([*by_position, "    *,\n", *by_name]),
        returns=returns,
        title=title,
        about="\n".join(f"    - `{a.name}`: {a.about}" for a in s.arguments),
        body=call + "\n".join(f"    {line}" for line in lines),
    )


def _refuse(program: Program, caller: Caller) -> None:
    def refused(found: str, required: str) -> BackendError:
        what = f"the jax backend cannot write '{caller.name}'"
        return BackendError(what, required=required, found=found, remedy="take --backend torch, c or triton")

    if len(program.leaves) > 1:
        raise refused(f"leaves {', '.join(program.leaves)}", "one kind of tokens")
    if caller.rows in program.leaves:
        raise refused(f"the rows are '{caller.rows}', the leaf", "rows of tokens")
    if program.matrices:
        raise refused("orthogonalise='projection', whose matrices an index computes", "residuals without a projection")
    for node in program.nodes():
        if isinstance(node, Scan):
            order = f"a sum in order of {' and '.join(node.sources)} over {node.target}"
            if node.sources != program.leaves or node.target not in (caller.rows, *caller.in_rows):
                raise refused(order, "sums in order of tokens, over what lies in one row")


def _function(name: str, schedule: Schedule, title: str) -> str:
    stored = {v for n in schedule.program.nodes() if isinstance(n, Quantile) for v in n.values}
    lines: list[str] = []
    for step in schedule.steps:
        assert isinstance(step, Step)
        # what a quantile reads is computed once, so that the value that is the quantile compares equal to it
        form = "lax.optimization_barrier({})" if step.node in stored else "{}"
        lines += statement(step, schedule, LANGUAGE, _value, form)
    return function(name, title, schedule, lines, "Array")


def _value(node: Node, operands: list[str]) -> str:
    if isinstance(node, Const):
        return f"jnp.full((1,), {constant(node.value)})"
    if isinstance(node, Quantile):
        return f"quantile({operands[0]}, over[{node.sources[0]!r}, {node.target!r}], {operands[-1]})"
    if isinstance(node, Scan):
        return f"scan({operands[0]}, over[{node.into!r}, {node.target!r}], {operands[-1]}, {node.forward})"
    raise BackendError(f"the jax backend cannot emit {type(node).__name__}")


LANGUAGE = Language("jax", OPERATORS, constant, partial(call, "jnp.where"))
