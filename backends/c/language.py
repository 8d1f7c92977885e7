"""C syntax: one row per scalar operator, constants, and the names that no value may have."""

from __future__ import annotations

import math
import re
from pathlib import Path

from fibration.backends.bodies import Language, in_parentheses, ternary
from fibration.compiler.ir import SCALAR_ARITY

WORDS = "math storage fibres sweeps quantiles scans".split()
PARTS = {part: Path(__file__).with_name(f"{part}.h") for part in WORDS}
_CODE = re.sub(r"/\*.*?\*/", "", "".join(part.read_text() for part in PARTS.values()), flags=re.DOTALL)
FUNCTIONS = [op for op in SCALAR_ARITY if re.search(rf"MATH \w+ {op}_", _CODE)]
# One row per scalar operator of the IR, except `select`. The functions are those of math.h in this folder.
OPERATORS = {
    "stop": "{}",
    "add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "div": "{} / {}", "neg": "-{}",
    "lt": "{} < {}", "le": "{} <= {}", "and": "{} & {}", "or": "{} | {}", "not": "!{}",
    "minimum": "smaller_T({}, {})", "maximum": "larger_T({}, {})", "abs": "abs_T({})", "equal": "{} == {}",
    **{function: f"{function}_T({{}})" for function in FUNCTIONS},
}  # fmt: skip
SELECTING = ("smaller", "larger", "abs")  # of one instruction, beside FUNCTIONS
INFIX = frozenset({"add", "sub", "mul", "div", "neg", "lt", "le", "and", "or", "not", "equal", "select"})
KEYWORDS = """
auto break case char const continue default do double else enum extern float for goto if inline int long register
restrict return short signed sizeof static struct switch typedef union unsigned void volatile while _Alignas _Alignof
_Atomic _Bool _Complex _Generic _Imaginary _Noreturn _Static_assert _Thread_local asm typeof bool true false main
""".split()
# Words of emitted code that are in no header here, and what the standard headers define without a capital letter.
SKELETON_WORDS = """
row_advantage places work lane group whole others b0 joined starts abs isnan signal errno math_errhandling linux unix
""".split()
PRECISIONS = ("f32", "f64", "real")
RESERVED = frozenset({
    *KEYWORDS, *SKELETON_WORDS, *re.findall(r"[A-Za-z_]\w*", _CODE),
    *FUNCTIONS, *(f"{f}_{p}" for f in (*FUNCTIONS, *SELECTING) for p in PRECISIONS),
})  # fmt: skip


def dtype_of(argument: str) -> str:
    """The macro for the dtype of a tensor of floats."""
    return f"DTYPE_{argument}"


def wide_constant(value: float) -> str:
    if math.isfinite(value):
        return in_parentheses(value)
    return "NAN" if math.isnan(value) else ("INFINITY" if value > 0 else "(-INFINITY)")


def token_constant(value: float) -> str:
    """A constant in the tokens' precision. Whole numbers are exact in any precision; others are rounded once."""
    if math.isfinite(value) and abs(value) < 2**24 and value == int(value):
        return in_parentheses(value, "f")
    return f"(real){wide_constant(value)}"


# for a comparison with a choice inside, compilers write branches and no vector code
COMPARED = frozenset({"lt", "le"})
WIDE, TOKEN = (
    Language("C", {k: v.replace("_T(", f"{p}(") for k, v in OPERATORS.items()}, written, ternary, INFIX, False,
             compared=COMPARED, suffix=p)
    for p, written in (("_f64", wide_constant), ("_real", token_constant))
)  # fmt: skip
