"""Formulas as MathML, which browsers set without a script. It reads the LaTeX that `latex.py` writes, and no other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

_TOKEN = re.compile(
    r"\\(mathrm|mathcal|operatorname|text|begin|end)\{((?:[^{}\\]|\\_)*)\}|\\([A-Za-z]+|.)|(\d+(?:\.\d+)?)|(\S)"
)
GREEK = dict(zip(  # a parameter of such a name is written as the letter
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi "
    "omega".split(), "αβγδϵζηθικλμνξπρστυϕχψω", strict=True,
))  # fmt: skip
_LETTERS = {**GREEK, "varphi": "φ", "varsigma": "ς", "Sigma": "Σ", "pm": "±"}
_OPERATORS = {
    "to": "→", "mid": "∣", "cdot": "·", "cap": "∩", "ge": "≥", "le": "≤", "ne": "≠", "land": "∧", "lor": "∨",
    "lnot": "¬",
}  # fmt: skip
_CALLED = ("log", "exp", "tanh", "arctan", "min")
_COMMANDS = {name: f"<mi>{letter}</mi>" for name, letter in _LETTERS.items()}
_COMMANDS |= {name: f"<mi>{name}</mi>" for name in _CALLED}
_COMMANDS |= {name: f"<mo>{sign}</mo>" for name, sign in _OPERATORS.items()}
_SPACES = {",": "0.17em", "quad": "1em", "qquad": "2em"}
_COMMANDS |= {name: f'<mspace width="{width}"></mspace>' for name, width in _SPACES.items()}
_BARS = {"lvert": "prefix", "rvert": "postfix"}
_COMMANDS |= {name: f'<mo form="{form}" stretchy="false">|</mo>' for name, form in _BARS.items()}
_LARGE = {"sum": "<mo>∑</mo>", "max": '<mo lspace="0" rspace="0" movablelimits="false">max</mo>'}  # over scripts
_COMMANDS |= _LARGE
_BREAK = "\\"  # of lines: the second half of LaTeX's two backslashes
_NO_BREAK = "\N{NO-BREAK SPACE}"


def mathml(rows: Sequence[str]) -> str:
    """Returns the rows of an `aligned` environment as one display, with a column on either side of their first `&`."""
    cells = [[_Reader(cell).row() for cell in row.split("&", 1)] for row in rows]
    lines = "".join(f"<mtr><mtd>{left}</mtd><mtd>{right}</mtd></mtr>" for left, right in cells)
    return f'<math display="block"><mtable displaystyle="true">{lines}</mtable></math>'


class _Reader:
    """Reads one formula from left to right. A command that `latex.py` does not write is a KeyError."""

    def __init__(self, latex: str) -> None:
        self.tokens = [m.groups("") for m in _TOKEN.finditer(latex)]
        self.at = 0

    @property
    def now(self) -> str:
        """The next token, as one word; "" at the end."""
        return "".join(self.tokens[self.at]) if self.at < len(self.tokens) else ""

    def row(self, *ends: str) -> str:
        """Returns all up to the end, or to one of the tokens `ends`, which is not read."""
        found = ""
        while self.now not in ("", *ends):
            found += self._with_scripts()
        return f"<mrow>{found}</mrow>"

    def _with_scripts(self) -> str:
        is_large, base, scripts = self.now in _LARGE, self._one(), dict[str, str]()
        while (mark := self.now) in ("_", "^"):
            self.at += 1
            scripts[mark] = self._one()
        where = {"_": "under" if is_large else "sub", "^": "over" if is_large else "sup"}
        tag = "m" + "".join(where[mark] for mark in "_^" if mark in scripts)
        return f"<{tag}>{base}{''.join(scripts[m] for m in '_^' if m in scripts)}</{tag}>" if scripts else base

    def _one(self) -> str:
        word, inside, command, number, sign = self.tokens[self.at]
        self.at += 1
        inside = escape(inside.replace(r"\_", "_"))
        if word == "text":
            return f"<mtext>{re.sub('^ | $', _NO_BREAK, inside)}</mtext>"
        if word == "begin":
            return self._cases()
        if word:
            return f'<mi mathvariant="normal">{"𝒢" if word == "mathcal" else inside}</mi>'
        if sign == "{":
            return self._until("}")
        if command == "left":
            return f"<mrow>{self._fence()}{self._until('right')}{self._fence()}</mrow>"
        if command in ("frac", "sqrt", "hat"):
            first, second = self._one(), self._one() if command == "frac" else ""
            if command == "hat":
                return first.replace("</mi>", "\N{COMBINING CIRCUMFLEX ACCENT}</mi>")
            return f"<m{command}>{first}{second}</m{command}>"
        if command:
            space = _COMMANDS[","] if command in _CALLED and self.now != "left" else ""
            return _COMMANDS[command] + space
        if number:
            return f"<mn>{number}</mn>"
        if sign.isalpha():
            return f"<mi>{sign}</mi>"
        return f'<mo stretchy="false">{escape(sign).replace("-", "−")}</mo>'

    def _until(self, end: str) -> str:
        found = self.row(end)
        self.at += 1
        return found

    def _fence(self) -> str:
        sign = "|" if self.now in _BARS else self.now
        self.at += 1
        return f'<mo stretchy="true">{sign}</mo>'

    def _cases(self) -> str:
        rows, end = [""], ""
        while end != "endcases":
            rows[-1] += f"<mtd>{self.row('&', _BREAK, 'endcases')}</mtd>"
            end = self.now
            self.at += 1
            rows += [""] * (end == _BREAK)
        lines = "".join(f"<mtr>{row}</mtr>" for row in rows)
        return f'<mrow><mo stretchy="true">{{</mo><mtable class="cases">{lines}</mtable></mrow>'
