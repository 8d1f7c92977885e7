"""Text for modules that are used without this library: a table of their functions, and the layout of a batch."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from fibration.compiler.arguments import CALLER, GIVEN, KINDS, Argument, fill_of, signature
from fibration.compiler.ir import BATCH, Const, Input, Key
from fibration.compiler.plan import Plan, computing
from fibration.errors import BackendError

# What a caller of a module has to know of arguments and results.
NOTES = """\
- Padded tensors [B, T]: pass x[mask] of each, and as `cu_seqlens` 0 and the sums of the rows' lengths so far.
- Advantages are per token. For advantages per row, pass `trajectory_rows`, int64: the row of each trajectory.
- Results but `peak_...`, `ratio_max` and `ratio_min` (of gated ratios) are sums: divide them by the numbers.
- `nonfinite` is the number of rows with an infinite or undefined log ratio or advantage. If it is above 0, do not use
  the results: the objective is NaN, and so are the results of such tokens."""


@dataclass(frozen=True)
class Export:
    """Files by name, first the module to import; and the resources of each compiled kernel on the chip."""

    files: Mapping[str, str | bytes]
    kernels: tuple[Mapping[str, str | int], ...] = field(default=())


def alone(backend: str, name: str, header: str, source: str, plans: object, titles: object, arch: str | None) -> Export:
    """The generated module as the only file. Raises BackendError for an `arch`."""
    if arch:
        raise BackendError(f"the {backend} backend compiles for no architecture", remedy="leave --arch out")
    return Export({f"{name}_{backend}.py": source})


def joined(*files: str) -> str:
    """One module of several files."""
    texts = [Path(file).read_text() for file in files]
    abouts, bodies = zip(*(text.split('"""\n', 1) for text in texts), strict=True)
    head = r"^(?:import|from|# mypy:) .*\n"
    imports = {line for line in re.findall(head, "".join(bodies), re.MULTILINE) if "fibration" not in line}
    rest = (re.sub(head, "", body, flags=re.MULTILINE).strip("\n") for body in bodies)
    return f'{abouts[0]}"""\n\n{"".join(sorted(imports))}\n' + "\n\n\n".join(rest) + "\n"


def table(plan: Plan, chosen: tuple[Argument, ...] = ()) -> list[str]:
    """The entry of one function in a module's FUNCTIONS: a call of `described`, as lines of text."""
    program, given = plan.program, signature(plan)

    def of(a: Argument) -> tuple[str, ...]:
        if a.kind == "vector":
            (node,) = a.key
            return (node.stratum, node.kind, *(node.key if node.kind not in GIVEN else (node.over,)))
        if a.kind == "matrix":
            return (a.key[0].into, a.key[0].of)
        if a.kind == "stride":
            return (given.name("vector", *a.key),)
        return tuple(program.called[part] if isinstance(part, Key) else str(part) for part in a.key)

    lines = [f'described("{plan.rows}", "{" ".join(program.leaves)}", {fill_of(plan)!r}, """']
    lines += _words(" ".join([a.name, a.kind, *of(a)]).strip() for a in chosen or given.arguments)
    lines.append('    """, """')
    pairs = zip((None, *plan.saved), plan.saved, strict=False)  # one stratum after the other
    first = {n for before, n in pairs if before is None or before.stratum != n.stratum}
    vectors = (f"{n.stratum}: {plan.names[n]}" if n in first else plan.names[n] for n in plan.saved)
    results = (name if name == at else f"{name} {at}" for name, at in returned(plan).items())
    return [*lines, *_words(vectors), '    """, """', *_words(results), '    """)']


def _words(items: Iterable[str]) -> list[str]:
    """Items as lines, which end between them."""
    text = ", ".join(item.replace(" ", "\0") for item in items)
    wrapped = textwrap.wrap(text, 108, break_long_words=False, break_on_hyphens=False)
    return [" " * 8 + line.replace("\0", " ") for line in wrapped]


def returned(plan: Plan) -> dict[str, str]:
    """By result that is not per token, its name in the workspace or among the arguments."""
    program, given, found = plan.program, signature(plan), {}
    for key, node in program.outputs.items():
        if node.stratum not in program.leaves and not isinstance(node, Const):
            found[program.called[key]] = given.name("vector", node) if isinstance(node, Input) else plan.names[node]
    return found


def example(plans: Mapping[str, Plan], call: str, indent: str) -> str:
    """How to call `objective`: lines of Python, with all that its caller passes. `call`: what they begin with."""
    plan = plans["objective"]
    pairs: dict[tuple[str, str], None] = {}
    for a in signature(plan).arguments:
        edge = a.key if a.kind in ("parent", "order", "members") else a.key[::-1] if a.kind == "offsets" else ()
        if edge and edge[1] != BATCH and (edge[0] not in plan.program.leaves or edge[1] != plan.rows):
            pairs[edge] = None
    given = [a.name for a in signature(plan).arguments if KINDS[a.kind].source == CALLER and a.kind != "rows"]
    counts = {a.name for a in signature(plan).arguments if a.kind == "vector" and a.key[0].kind == "count"}
    parents = ", ".join(f'("{s}", "{t}"): {t}_of_{s}' for s, t in pairs)
    words = ", ".join([*(f"{word}=..." for word in given if word not in counts), "**layout"])
    lines = [f'layout = lay_out("objective", cu_seqlens, {{{parents}}})', f"found = {call}{words})"]
    lines.append('loss = -(found["coefficients"] * log_probs).sum()  # its gradient is that of -J')
    made = [textwrap.wrap(line, 116 - len(indent), subsequent_indent="    ", break_long_words=False) for line in lines]
    return "\n".join(f"{indent}{line}" for lines in made for line in lines)


def further(plans: Mapping[str, Plan], indent: str = "") -> str:
    """The paragraph of a docstring that names the tensors of further policies; empty without further policies."""
    every = (a for plan in plans.values() for a in signature(plan).arguments)
    names = {a.name: a.key[1] for a in every if a.kind == "token" and len(a.key) > 1}
    if not names:
        return ""
    of = ", ".join(f"`{name}` under '{policy}'" for name, policy in names.items())
    return f"\n{indent}Besides `log_probs` and `old_log_probs`, pass log π of every token in their shape: {of}.\n"


def written(plans: Mapping[str, Plan], chosen: Mapping[str, tuple[Argument, ...]] = MappingProxyType({})) -> str:
    """The text that defines FUNCTIONS. A function without metrics shares all but its results."""
    lines = ["FUNCTIONS = {}"]
    for name, of in computing(plans).items():
        if name == of:
            first, *rest = table(plans[name], chosen.get(name, ()))
        else:
            first, rest = f'without_metrics(FUNCTIONS, "{of}", "{" ".join(returned(plans[name]))}")', []
        lines += [f'FUNCTIONS["{name}"] = {first}', *rest]
    return "\n".join(lines)
