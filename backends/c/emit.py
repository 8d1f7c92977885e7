"""Writes a fused plan as one standalone, readable C file (C11 and OpenMP).

`writer.py` writes the functions: loops whose bodies come from the plan. A pass in float64 sums into doubles. A pass in
the tokens' precision sums chunks of `CHUNK` tokens in that precision, and the chunks in double. The order of a sum
depends on nothing but the segment's tokens and the dtypes: chunks and lanes (`fibres.h`) begin at its first token, and
long coarse sums are cut at fixed places.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Mapping
from functools import cache

from fibration.backends.bodies import Functions, functions_of
from fibration.backends.c.language import FUNCTIONS, PARTS, RESERVED, SELECTING, TOKEN, WIDE, dtype_of
from fibration.backends.c.writer import Writer
from fibration.compiler.arguments import FLOATS, signature
from fibration.compiler.fuse import sweeps
from fibration.compiler.ir import Key
from fibration.compiler.plan import Plan, Spread
from fibration.compiler.program import Program
from fibration.compiler.reuse import find_aside, read_quantile_values


def plan(program: Program, rows: str, spread: Spread | None = None, metrics: Collection[Key] = ()) -> Plan:
    """Fused sweeps over the tokens, which read a quantile's values where an earlier pass has set them aside."""
    return find_aside(sweeps(read_quantile_values(program), rows, RESERVED, spread, metrics=metrics))


def emit(header: str, plans: Mapping[str, Plan], titles: Mapping[str, str]) -> str:
    """The source of a file with one function per plan, or one per section if the batch is spread over ranks.

    `header` is a comment block of lines that start with '#'.
    """
    lines = (line.removeprefix("#").removeprefix(" ").replace("*/", "* /") for line in header.splitlines())
    top = "/*\n" + "\n".join(lines) + "\n*/"
    found = dict.fromkeys(word for plan in plans.values() for word in signature(plan).layouts.values())
    variants = "".join(VARIANT.format(s=word) for word in found)
    every = (a for plan in plans.values() for a in signature(plan).arguments if a.holds == FLOATS)
    dtypes = "".join(DTYPE.format(macro=dtype_of(name)) for name in dict.fromkeys(a.name for a in every))
    defined = functions_of(plans, RESERVED)
    loops = []
    for name, plan in plans.items():
        if plan.of is not None:
            continue
        sections = [(f, section) for f, section in plan.functions(name).items() if section]
        texts = [Writer(f, plan, section, titles[name], defined).text() for f, section in sections]
        loops.append("\n".join([f"\n#ifndef WITHOUT_{name}", *texts, "#endif"]))
    bodies = "\n".join(["", *_defined(defined, "\n".join(loops))])
    parts = [top, f"{dtypes}{variants}{INCLUDED}", bodies, *loops]
    return "\n".join(part.rstrip() + "\n" for part in parts)


@cache
def shared() -> str:
    """What generated C files have in common. `fibration compile -o` writes it beside them."""
    text = "\n".join(path.read_text() for path in PARTS.values())
    functions = (f"#define {f}_real JOIN({f}_, REAL)\n" for f in (*FUNCTIONS, *SELECTING))
    return text.replace("{functions}", "".join(functions))


def _defined(functions: Functions, text: str) -> Iterator[str]:
    """Scalar bodies as functions, in the precisions in which `text` calls them."""
    for body, function in functions.items():
        given, ways = function.parameters, (("double", WIDE), ("real", TOKEN))
        made = [(kind, way) for kind, way in ways if f"{function.name}{way.suffix}(" in text]
        yield from [f"/* {function.about} */"] * bool(made)
        for kind, language in made:
            before, value = language.write(body, given, "part", RESERVED | set(given))
            lines = [*(f"const {kind} {name} = {part};" for name, part in before), f"return {value};"]
            head = f"MATH {kind} {function.name}{language.suffix}({', '.join(f'{kind} {word}' for word in given)})"
            yield "\n".join([head, "{", textwrap.indent("\n".join(lines), "    "), "}"])


SHARED = "fibration.h"
INCLUDED = f"""\
/* Has what the code below is written with. AT: where a batch's tensors lie. EACH_ROW: work on each row. SPREAD and ROW:
   numbers of rows that tokens read. PASS: a loop over tokens, and the sums EACH of which it takes. PUSH: sums above. */
#include "{SHARED}"
"""
VARIANT = """\
#ifndef WHOLE_{s} /* 1: the tokens of each {s} are contiguous. 0: {s}_positions has their places */
#define WHOLE_{s} 1
#endif
#ifndef COUNTED_{s} /* 1: tokens are numbered {s} by {s}. 0: {s}_tokens has their numbers */
#define COUNTED_{s} 1
#endif
#ifndef SHORT_{s} /* 1: no {s} has more than LANES tokens. 0: any number, with the same bits */
#define SHORT_{s} 0
#endif
"""

DTYPE = """\
#ifndef {macro}
#define {macro} f32
#endif
"""
