"""A hierarchy as LaTeX, and that LaTeX as MathML, which browsers set without a script. The laws need not hold."""

from __future__ import annotations

import functools
import itertools
import operator
import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from fibration.language.atoms import (
    BATCH,
    Attribute,
    Component,
    Count,
    Density,
    Gated,
    Parameter,
    Place,
    Reading,
    Stratum,
    Summary,
    Total,
    at,
    mass,
    pull,
    residual,
)
from fibration.language.declared import LogProb
from fibration.language.expressions import Apply, Expression, Number, write_number
from fibration.language.gates import Gate, GatePerChannel
from fibration.language.hierarchy import Hierarchy
from fibration.language.objectives import Objective, Penalty
from fibration.language.operators import OPERATORS
from fibration.language.statistics import ONE, Aggregate, Ordered
from fibration.language.strata import Assumption, Populated
from fibration.language.traversal import atoms, cancel, rewrite
from fibration.printing.text import has_crossings, joint, moebius

_READINGS = {
    "residual": r"\rho", "advantage": "A", "token_log_ratio": "x", "mass": "m", "channel_sign": r"\varsigma",
    "pull": r"\varphi", "reward": r"\mathrm{reward}",
}  # fmt: skip
# For operators with a sign: their strength, and the least strength of each operand that needs no parentheses.
_STRENGTHS = {
    "+": (1, 1, 1), "-": (1, 1, 2), "*": (2, 2, 2), "/": (2, 0, 0), "**": (3, 4, 0), "neg": (1, 2),
    "<": (0, 1, 1), "<=": (0, 1, 1), ">": (0, 1, 1), ">=": (0, 1, 1), "and": (0, 2, 2), "or": (0, 2, 2), "not": (0, 0),
}  # fmt: skip


def latex(hierarchy: Hierarchy) -> str:
    """Returns an `align*` environment (amsmath): strata, kernels, masses, decomposition, gates, recovery, objective."""
    return f"\\begin{{align*}}\n% {hierarchy.name}\n{_joined(hierarchy)}\n\\end{{align*}}"


def displayed(hierarchy: Hierarchy) -> str:
    """Returns the same rows between `$$`, for MathJax and KaTeX."""
    return f"$$\n\\begin{{aligned}}\n{_joined(hierarchy)}\n\\end{{aligned}}\n$$"


def _joined(hierarchy: Hierarchy) -> str:
    return " \\\\\n".join(rows_of(hierarchy))


def rows_of(h: Hierarchy) -> list[str]:
    """Returns the formulas of a hierarchy, each a row of LaTeX with a `&` where it is aligned."""
    two = len(h.decomposition.channels) > 1
    rows = [f"&{_strata(h)}"]
    rows += [rf"K({_name(f.source)} \mid {_name(f.target)}) &= {tex(f.weight)}" for f in h.fibrations]
    for target, cover in ((s, cover) for s in h.strata for cover in joint(h, s)):
        sums = (rf"\sum_{{{_name(f.source)}}} K({_name(f.source)} \mid {_name(target)})" for f in cover)
        rows.append(f"{' + '.join(sums)} &= 1")
    d = h.decomposition
    read = (*(g.expression for g in h.gates.values()), *(e for _, e in d.densities), d.recovery)
    if any(mass in atoms(e) for e in read) and h.shape.is_acyclic:
        rows += [rf"m({_name(s)}) &= {tex(m)}" for s, m in h.masses.items()]
    rows += [_assumption(h, a) + r" \quad\text{is assumed}" for a in h.assume]
    rows += [rf"F{f'_{{{c}}}' if two else ''}(x) &= {tex(cancel(e))}" for c, e in h.decomposition.densities]
    rows[-1] += r",\qquad x = \log r"
    rows += _residual_rows(h)
    for s in itertools.chain.from_iterable(h.shape.layers()):
        for channel, gate in _channels(h.gates[s]):
            body, *where = _gate(at(gate.expression, s))
            rows += [rf"g_{{{_name(s)}}}{channel}(\rho) &= {body}", *(rf"&\qquad\text{{with }} {w}" for w in where)]
        if pull in atoms(h.gates[s].expression):
            rows.append(rf"&\qquad\text{{with }} {_atom(pull)} = {tex(h.pull(s))}")
    rows.append(rf"R(\hat\sigma) &= {tex(cancel(h.decomposition.recovery))}")
    return [*rows, *_objective(h)]


def _channels(gate: Gate) -> list[tuple[str, Gate]]:
    return [("^{+}", gate.plus), ("^{-}", gate.minus)] if isinstance(gate, GatePerChannel) else [("", gate)]


def _objective(h: Hierarchy) -> Iterator[str]:
    o = h.objective
    gated = (r"w_i\, " if o.weighed else "") + r"\mathcal{G}(r)_i"
    product = rf"{gated}\, A_i"
    if o.estimator == "score":
        product = rf"\operatorname{{stop}}\left({gated}\right)\, A_i\, \log \pi_i"
    less = "".join(f" - {_penalised(k, p)}" for k, p in h.penalties.items())
    yield rf"J &= \sum_i \mu_i\, {product}{less},\qquad \mu_i = {tex(o.spelled_out(h.leaves, h.rows))}"
    yield from _weights(h, o)
    if h.advantages is not None:
        yield rf"A_i &= {tex(h.advantages)}"
    for name, penalty in h.penalties.items():
        of = "" if penalty.over is not None else "_i"
        yield rf"{_word(name)}{of} &= {tex(at(penalty.formula, penalty.over))}"
        if penalty.objective is not None:
            mu = penalty.objective.spelled_out(h.leaves, h.rows)
            yield rf"&\qquad\text{{with }} \mu^{{{_word(name)}}}_i = {tex(mu)}"
            yield from _weights(h, penalty.objective, name)


def _penalised(name: str, penalty: Penalty) -> str:
    """Returns the term that is subtracted from the objective."""
    if penalty.over is not None:
        return rf"\operatorname{{mean}}_{{{_name(penalty.over)}}}\left({_word(name)}\right)"
    own = "" if penalty.objective is None else f"^{{{_word(name)}}}"
    weight = rf"w{own}_i\, " if penalty.objective and penalty.objective.weighed else ""
    return rf"\sum_i \mu{own}_i\, {weight}{_word(name)}_i"


def _weights(h: Hierarchy, o: Objective, penalty: str = "") -> Iterator[str]:
    """Yields the weights and conditions of the hierarchy's objective, or of a penalty's own objective."""
    own = f"^{{{_word(penalty)}}}" if penalty else ""
    if o.weighed:
        yield rf"w{own}_i &= {tex(functools.reduce(operator.mul, o.weighed))}"
    for k in o.kept:
        counted = rf"\text{{, which alone }}\mu{own}\text{{ counts}}" if k.normaliser == "kept" else ""
        apart = r"\text{, but in penalties}" if h.penalties and not (counted or penalty) else ""
        of = rf" \text{{ of }} {_word(penalty)}" if penalty else ""
        yield rf"&\qquad\text{{over }} i{of} \text{{ with }} {tex(k.condition)}{counted}{apart}"


def _strata(h: Hierarchy) -> str:
    """Returns the fibrations as paths towards the roots, each on one path, and the groups below the rows."""
    unused = list(h.fibrations)
    paths: list[list[Stratum]] = [] if unused else [[h.strata[0]]]
    while unused:
        leaf = next((f for f in unused if all(g.target != f.source for g in unused)), unused[0])
        path = [leaf.source]
        while following := next((f for f in unused if f.source == path[-1]), None):
            unused.remove(following)
            path.append(following.target)
        paths.append(path)
    paths += [[h.rows, group] for group in h.groups]
    return r",\quad ".join(r" \to ".join(map(_name, path)) for path in paths)


def _assumption(h: Hierarchy, assumption: Assumption) -> str:
    if isinstance(assumption, Populated):
        return rf"{_atom(Count(assumption.stratum, assumption.over))} &\ge 1"
    a, b = _name(assumption.first), _name(assumption.second)
    over = ", ".join(_name(s) for s in h.shape.meets(assumption.first, assumption.second) or (Stratum(BATCH),))
    return rf"m({a} \cap {b})\, m({over}) &= m({a})\, m({b})"


def _residual_rows(h: Hierarchy) -> list[str]:
    if not has_crossings(h):
        return []
    if h.orthogonalise and h.shape.crossed():
        effects = r",\, ".join(rf"\rho_{{{_name(s)}}}" for s in h.shape.under_crossings())
        return [rf"&{effects}\quad\text{{by least squares in }} m\text{{, each orthogonal to the coarser}}"]
    rows = []
    for stratum, coarser in moebius(h).items():
        signs = "".join(
            rf" {'+' if c < 0 else '-'} {'' if abs(c) == 1 else abs(c)}K \sigma_{{{_name(u)}}}"
            for u, c in coarser.items()
        )
        rows.append(rf"\rho_{{{_name(stratum)}}} &= \sigma_{{{_name(stratum)}}}{signs}")
    return rows


def _gate(expression: Expression) -> tuple[str, ...]:
    """Returns a gate's lines; `gate.per(scale)` becomes the scale times the gate of s, with the line s = ρ/scale."""
    if isinstance(expression, Apply) and expression.operator == "*":
        scale, inner = expression.arguments
        s = Reading("s")
        ratio = residual / scale
        scaled = rewrite(inner, lambda e: s if e == ratio else e)
        if scaled != inner and residual not in atoms(scaled):
            text, strength = _tex(scale)
            factor = text if strength > 1 else rf"\left({text}\right)"
            return rf"{factor} \cdot {tex(scaled)}", f"s = {tex(cancel(residual / scale))}"
    return (tex(expression),)


def tex(expression: Expression) -> str:
    """Returns an expression as LaTeX mathematics, for amsmath."""
    return _tex(expression)[0]


class _Written(NamedTuple):
    text: str
    strength: int  # 0 cases and conditions, 1 sums, 2 products, 3 powers, 4 text that never needs parentheses


def _tex(e: Expression) -> _Written:
    if isinstance(e, Number):
        digits, _, exponent = write_number(e.value).partition("e")
        if exponent:
            factor = "" if digits == "1" else rf"{digits} \cdot "
            return _Written(f"{factor}10^{{{int(exponent)}}}", (2 if factor else 3) if e.value >= 0 else 1)
        return _Written(digits, 4 if e.value >= 0 else 1)
    if not isinstance(e, Apply):
        return _Written(_atom(e), 4)
    op, args = e.operator, e.arguments
    written = OPERATORS[op].latex
    if not isinstance(written, str):
        return _tex(written(*args))
    if op == "where":
        return _Written(written % _cases(e), 0)
    if op == "*" and isinstance(args[1], Number):
        written = r"%s \cdot %s"
    strength, *least = _STRENGTHS.get(op, (4, *(0 for _ in args)))
    texts = []
    for i, (argument, at_least) in enumerate(zip(args, least, strict=True)):
        text, inner = _tex(argument)
        negative_inside = i > 0 and at_least > 0 and inner == 1 and text.startswith("-")
        texts.append(text if inner >= at_least and not negative_inside else rf"\left({text}\right)")
    return _Written(written % tuple(texts), strength)


def _cases(e: Expression) -> str:
    rows = []
    while isinstance(e, Apply) and e.operator == "where":
        condition, value, e = e.arguments
        rows.append(rf"{tex(value)} & \text{{if }} {tex(condition)}")
    rows.append(rf"{tex(e)} & \text{{otherwise}}")
    return r" \\ ".join(rows)


def _atom(atom: Expression) -> str:
    if isinstance(atom, Count):
        return rf"\lvert {_name(atom.of)}({_name(atom.over)}) \rvert"
    if isinstance(atom, Total):
        return rf"\Sigma_{{{_symbol(atom.attribute.name)}}}({_name(atom.over)})"
    if isinstance(atom, Attribute):
        return rf"{_symbol(atom.name)}({_name(atom.on)})"
    if isinstance(atom, (Parameter, Component)):
        parameter = atom.parameter if isinstance(atom, Component) else atom
        channel = atom.channel if isinstance(atom, Component) else r"\pm" if parameter.per_channel else ""
        return _symbol(parameter.name) + (f"^{{{channel}}}" if channel else "")
    if isinstance(atom, Density):
        return rf"\sigma_{{{_name(atom.stratum)}}}" + (f"^{{{atom.channel}}}" if atom.channel else "")
    if isinstance(atom, Gated):
        return r"\hat\sigma" + (f"_{{{atom.channel}}}" if atom.channel else "")
    if isinstance(atom, LogProb):
        return rf"\log \pi_{{\mathrm{{{_escape(atom.policy.name)}}}}}"
    if isinstance(atom, Aggregate):
        level = r"^{\ne}" if atom.others else "" if atom.level is None else f"^{{{tex(atom.level)}}}"
        word = {"total": r"\sum", "largest": r"\max"}.get(atom.kind, rf"\operatorname{{{atom.kind}}}")
        return rf"{word}_{{{_gathered(atom)}}}{level}\left({tex(atom.formula)}\right)"
    if isinstance(atom, Ordered):
        if atom.is_position:
            return rf"\operatorname{{position}}_{{{_gathered(atom)}}}"
        discount = "" if atom.discount == ONE else f"^{{{tex(atom.discount)}}}"
        return rf"\operatorname{{{atom.direction}}}_{{{_gathered(atom)}}}{discount}\left({tex(atom.formula)}\right)"
    return _READINGS.get(getattr(atom, "name", ""), "s")


def _gathered(atom: Summary) -> str:
    """Returns the subscript of a statistic or an order: its elements, and the stratum that they lie over."""
    return (rf"{_name(atom.of)} \to " if atom.of is not None else "") + _name(atom.over)


def _name(stratum: object) -> str:
    """Returns a stratum's name; `None`, the current element, is a dot."""
    return rf"\mathrm{{{_escape(stratum.name)}}}" if isinstance(stratum, (Stratum, Place)) else r"\cdot"


def _symbol(name: str) -> str:
    """Returns `C_prompt_group` as C with the subscript prompt_group, and `epsilon` as the Greek letter."""
    head, _, tail = name.partition("_")
    word = rf"\{head}" if head in GREEK else head if len(head) == 1 else rf"\mathrm{{{head}}}"
    return word + (rf"_{{\mathrm{{{_escape(tail)}}}}}" if tail else "")


def _word(name: str) -> str:
    return rf"\mathrm{{{_escape(name)}}}"


def _escape(name: str) -> str:
    return name.replace("_", r"\_")


# ---------------------------------------------------------------- MathML: reads the LaTeX above, and no other


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
