"""Checks of the formulas that are read at tokens or at the elements of a stratum, and of where gradients flow.

The formulas stand in weights, conditions of `keep`, advantages and penalties, and inside statistics and order. A `stop`
with no gradient to stop is refused, because it misleads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from fibration.errors import SpecError, an, listed, suggest
from fibration.language.atoms import (
    Attribute,
    Count,
    Density,
    Gated,
    Parameter,
    Reading,
    Stratum,
    Summary,
    Total,
    Where,
    advantage,
    channel_sign,
    mass,
    pull,
    residual,
    reward,
    token_log_ratio,
)
from fibration.language.declared import CURRENT, LogProb
from fibration.language.expressions import Apply, Expression
from fibration.language.operators import stop
from fibration.language.outline import Outline, whole_batch
from fibration.language.statistics import AFTER, BEFORE, FRACTION, LEVEL, Aggregate, Ordered, atoms_within, is_fraction
from fibration.language.strata import Shape
from fibration.language.traversal import atoms, desugar

TOKENS = (
    "what every token has: log_prob(policy), token_log_ratio, advantage; attributes, counts and totals of it or of "
    "what it lies over; parameters; statistics and order of these"
)
REWARDS = (
    "what a token was sampled with: reward, log_prob of all policies but current; attributes, counts and totals of it "
    "or of what it lies over; parameters; statistics and order of these"
)
OF_ELEMENTS = (
    "values of every {}: attributes, counts and totals of it or of coarser strata, its advantage if it has one; "
    "parameters; statistics and order of these values"
)
OF_ADVANTAGES = "rewards in the formula of advantages alone: calls make advantages of them"
GATHERED = "of= a stratum of the hierarchy whose elements lie over those of over="
# Atoms that no formula here may read: why not, and what to write instead.
_OF_A_LEVEL = {
    residual: ("a residual is a level's, and gradients flow through it", "read token_log_ratio, or put it into a gate"),
    mass: ("the mass is what kernels spread", "write the count or total that it stands for"),
    channel_sign: ("a token is on every channel", "read the sign of token_log_ratio"),
    pull: ("what pulls an element is for its gate", "read advantage"),
}
WIDEST = 80  # characters of a formula in a message
Problem = tuple[str, str]  # why an atom cannot be read, and the fix


def short(formula: Expression) -> str:
    text = str(formula)
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 3]}..."


def called(gathered: Summary) -> str:
    """Returns the description of a statistic or an order in messages."""
    return f"the {'statistic' if isinstance(gathered, Aggregate) else 'order'} {short(gathered)}"


# ---------------------------------------------------------------- the formulas of a hierarchy


@dataclass(frozen=True)
class DeclaredFormula:
    """A formula of a hierarchy, and where it is read.

    `role` decides which atoms are refused:
    - "token", "advantages", "penalty": this module checks every atom at `place` (None: at tokens);
    - "density", "level": the law of locality and the check of objectives decide what may be read, and where.
    """

    what: str
    formula: Expression
    role: str
    place: Stratum | None = None


def roots(h: Outline) -> Iterator[DeclaredFormula]:
    """Yields every formula of a hierarchy."""
    yield from (DeclaredFormula(f"the weight {short(w)}", w, "token") for w in h.objective.weighed)
    yield from (DeclaredFormula(f"keep({short(k.condition)})", k.condition, "token") for k in h.objective.kept)
    if h.advantages is not None:
        yield DeclaredFormula("the formula of advantages", h.advantages, "advantages")
    for name, p in h.penalties.items():
        yield DeclaredFormula(f"the penalty '{name}'", p.formula, "penalty", p.over)
        formulas = () if p.objective is None else p.objective.formulas
        yield from (DeclaredFormula(f"the objective of the penalty '{name}'", formula, "token") for formula in formulas)
        if p.objective is not None:
            yield DeclaredFormula(f"the objective of the penalty '{name}'", p.objective.weight, "level")
    yield from (DeclaredFormula(f"kernel {f.name}", f.weight, "level", f.source) for f in h.fibrations)
    yield from (DeclaredFormula(f"the gate on {s}", g.expression, "level", s) for s, g in h.gates.items())
    for channel, density in h.decomposition.densities:
        yield DeclaredFormula(f"density '{channel}' of the decomposition", density, "density")
    yield DeclaredFormula("the recovery", h.decomposition.recovery, "level")
    yield DeclaredFormula("the scale of the decomposition", h.decomposition.scale, "level")
    yield DeclaredFormula("the objective", h.objective.weight, "level")


def check_token_formulas(h: Outline, here: str) -> None:
    """Raises SpecError for an atom without one number per token, or per element at which it is read.

    A penalty whose value, not only its conditions, depends on the advantage is refused too.
    """
    reader = _Reader(h, here)
    for root in roots(h):
        judged = root.role in ("token", "advantages", "penalty")
        reader.check(root.what, root.formula, root.role, root.place, judged)
    for name, penalty in h.penalties.items():
        weighed = () if penalty.objective is None else penalty.objective.weighed
        for formula in (penalty.formula, *weighed):
            if _is_number_of_advantages(desugar(formula)):
                raise SpecError(
                    f"{here}: the penalty '{name}' reads advantage as a number, in {short(formula)}",
                    required="advantage only in conditions, because a penalty is not multiplied by it",
                    found="coefficients that are not the sum of an advantage's part and a penalty's part",
                    remedy="read its sign, where(advantage > 0, x, 0); put terms that A multiplies into the objective",
                )


def _is_number_of_advantages(formula: Expression) -> bool:
    """Whether the value of a formula without sugar depends on the advantage, not only its conditions."""
    if isinstance(formula, Apply):
        return not formula.is_condition and any(map(_is_number_of_advantages, formula.arguments))
    if isinstance(formula, Summary):
        return not formula.is_condition and _is_number_of_advantages(desugar(formula.formula))
    return formula == advantage


# ---------------------------------------------------------------- checks of atoms


class _Reader:
    """Checks what formulas of one hierarchy read at tokens and at the elements of a stratum."""

    def __init__(self, h: Outline, here: str) -> None:
        self.h, self.here = h, here

    @cached_property
    def shape(self) -> Shape:
        """The strata with the rows, the groups and the batch. Not used for a cycle, which the laws refuse."""
        return whole_batch(self.h)

    def check(self, what: str, formula: Expression, role: str, place: Stratum | None, judged: bool = True) -> None:
        """Raises SpecError for the first atom that cannot be read at `place`, or in statistics and order there."""
        for atom in atoms(formula):
            here = REWARDS if role == "advantages" and place is None else OF_ELEMENTS.format(place) if place else TOKENS
            words = OF_ADVANTAGES if atom == reward else here
            rules = [(words, self.word(atom, role)), (GATHERED, self.gathered(atom)), (LEVEL, self.level(atom, place))]
            for required, problem in (*rules, (here, self.problem(atom, place) if judged else None)):
                if problem is not None:
                    why, remedy = problem
                    raise SpecError(f"{self.here}: {what} reads {atom}", required=required, found=why, remedy=remedy)
            if isinstance(atom, Summary):
                of = atom.of if isinstance(atom.of, Stratum) else None
                self.check(called(atom), atom.formula, role, of)

    def places(self, place: Stratum | None) -> tuple[Stratum, ...]:
        """Returns the strata with one element at or below each element of `place`, or each token (`place` None)."""
        if place is not None:
            return place, *self.shape.coarser(place)
        tokens = [(leaf, *self.shape.coarser(leaf)) for leaf in self.h.leaves]
        return tuple(s for s in tokens[0] if all(s in other for other in tokens))

    # ------------------------------------------------------------ at any place

    def word(self, atom: Expression, role: str) -> Problem | None:
        """The problem of a reward outside advantages, or of an advantage or a current log-prob inside them, if any."""
        if atom == reward and role != "advantages":
            return "rewards are for advantages= alone", "read advantage, which gates, weights and conditions may"
        if role == "advantages":
            if atom == advantage:
                return "this is what advantages are made of", "read reward"
            if atom == token_log_ratio or (isinstance(atom, LogProb) and not atom.policy.is_frozen):
                why = "advantages are detached, and the same in every update of a batch"
                return why, "read log_prob(old), or penalise the current policy: penalties={'kl': ...}"
        return None

    def gathered(self, atom: Expression) -> Problem | None:
        """The problem of a statistic or an order, wherever it is read, if any."""
        if not self.h.leaves or not isinstance(atom, Summary) or atom.of is None:
            return None
        return self.elements(atom, atom.of)

    def elements(self, atom: Summary, of: Where) -> Problem | None:
        """The problem of `of=`, if any: it must name a stratum whose elements lie over those of `over`."""
        if not isinstance(of, Stratum):
            return (
                f"'{of}' stands for the rows only in advantages= and penalties=",
                f"name the stratum: of={self.h.rows}",
            )
        if of not in self.shape.strata:
            return f"the hierarchy has no stratum '{of}'", self.known(of, tuple(self.shape.strata))
        over = atom.over
        if over is None or over in self.shape.coarser(of):
            return None
        if over == of:
            return (
                f"over one '{of}' it is that {of}'s own",
                f"say over what: over= one of {_names(self.shape.coarser(of))}",
            )
        if isinstance(over, Stratum) and of in self.shape.coarser(over):
            return f"'{over}' lies over '{of}'", f"the other way round: over={of}, of={over}"
        return f"no '{of}' lies over a '{over}'", self.known(over, self.shape.coarser(of))

    def level(self, atom: Expression, place: Stratum | None) -> Problem | None:
        """The problem of a quantile's level, if any: parameters may have been renamed to some of other bounds."""
        if not isinstance(atom, Aggregate) or atom.level is None:
            return None
        level, over = atom.level, atom.over or place
        if not is_fraction(level):
            return f"the level is {level}", FRACTION
        if not self.h.leaves or not isinstance(level, Parameter) or not isinstance(over, Stratum):
            return None
        if level.on in (None, over, *self.shape.coarser(over)):
            return None
        return f"the level '{level.name}' varies over {level.on}", f"let it vary over {over} or what is coarser"

    # ------------------------------------------------------------ at an element

    def problem(self, atom: Expression, place: Stratum | None) -> Problem | None:
        """Why an atom has no single number at `place`; None if it has one."""
        if isinstance(atom, (Density, Gated)):
            return (
                "densities are a level's, and gradients flow through them",
                "read token_log_ratio, or a statistic of it",
            )
        if atom in _OF_A_LEVEL:
            return _OF_A_LEVEL[atom]  # type: ignore[index]
        if isinstance(atom, Parameter) and atom.per_channel:
            return "a token is on every channel", "declare it with per_channel=False, or a parameter for each"
        if not self.h.leaves:
            return None
        if isinstance(atom, (Reading, LogProb)):
            return self.of_tokens(atom, place)
        if isinstance(atom, (Attribute, Parameter)):
            return None if atom.on is None or atom.on in self.places(place) else self.elsewhere(atom.on, place)
        if isinstance(atom, (Count, Total)):
            return self.sum(atom, place)
        return self.statistic(atom, place) if isinstance(atom, Aggregate) else self.ordered(atom, place)

    def of_tokens(self, atom: Reading | LogProb, place: Stratum | None) -> Problem | None:
        """The problem of a log-prob, advantage or reward, if any.

        Log-probs are read at tokens; advantages and rewards also at rows, and at elements over a row.
        """
        if place is None or place in self.h.leaves:
            return None
        if atom in (advantage, reward) and self.h.rows in self.places(place):
            return None
        why = f"it is a token's, and {an(place)} has several"
        return why, f"read a statistic of its tokens: mean({atom}, over={place})"

    def sum(self, atom: Count | Total, place: Stratum | None) -> Problem | None:
        of, over, places = atom.of, atom.over, self.places(place)
        if not isinstance(of, Stratum):
            return f"'{of}' is a stratum only in kernels", "name a stratum"
        if over is None and place is not None:
            over = place
        if over is None and of not in self.h.leaves:
            return f"no '{of}' lies over a token", f"say over what: over= one of {_names(places)}"
        if over is None and len(self.h.leaves) == 1:
            return None
        if over not in places:
            return self.elsewhere(over or of, place)
        if of != over and over not in self.shape.coarser(of):
            return f"no '{of}' lies over a '{over}'", f"the strata are {_names(self.shape.strata)}"
        return None

    def statistic(self, atom: Aggregate, place: Stratum | None) -> Problem | None:
        over, places = atom.over or place, self.places(place)
        if over is None:
            places = places if atom.of is None else self.shape.coarser(atom.of)  # type: ignore[arg-type]
            return "over one token it is that token's own", f"say over what: over= one of {_names(places)}"
        if over not in places:
            return self.elsewhere(over, place)
        if not atom.others or atom.of in places:
            return None
        why = f"{'not every token' if place is None else f'no {place}'} lies over a '{atom.of}', so none is left out"
        return why, f"leave others out, or take of= one of {_names(places)}"

    def ordered(self, atom: Expression, place: Stratum | None) -> Problem | None:
        assert isinstance(atom, Ordered)
        places = self.places(place)
        if atom.of is not None:
            return None if atom.of in places else self.elsewhere(atom.of, place)
        if place is not None and place not in self.h.leaves:
            return f"tokens are ordered, and {an(place)} has several", f"order elements: of={place}"
        if atom.over in self.h.leaves:
            return (
                "within one token nothing comes before another",
                f"say over what: over= one of {_names(tuple(s for s in places if s not in self.h.leaves))}",
            )
        return None if atom.over in places else self.elsewhere(atom.over, place)

    def elsewhere(self, other: object, place: Stratum | None) -> Problem:
        """The problem of an atom at `place` that reads `other`, which `place` does not lie over."""
        h, here = self.h, "token" if place is None else str(place)
        if place is None and other in h.leaves:
            why = f"tokens are elements of {listed(h.leaves)}, not of {other} alone"
        elif isinstance(other, Stratum) and place is not None and place in self.shape.coarser(other):
            why = f"{an(place)} has several {other}"
        elif place is None and other in self.shape.strata:
            why = f"not every token lies over a '{other}'"
        else:
            why = f"no {here} lies over a '{other}'"
        return why, self.known(other, self.places(place))

    def known(self, other: object, places: tuple[Stratum, ...]) -> str:
        """Returns the fix: the strata to name instead of `other`."""
        names = [s.name for s in places]
        if not isinstance(other, Stratum) or other in self.shape.strata:
            return f"name one of {', '.join(names)}" if names else "name what tokens lie over"
        declare = f"name one of {', '.join(names)}; or declare it, groups=[{other}], with a label for each row"
        return suggest(other.name, names) or declare


def _names(strata: tuple[Stratum, ...]) -> str:
    return ", ".join(s.name for s in strata)


# ---------------------------------------------------------------- gradients of the current policy


STOP = "stop"
# Kinds of statistics and order that carry gradients: none; in densities; in penalties.
NO_KINDS: frozenset[str] = frozenset()
ORDER = frozenset({BEFORE, AFTER})
SUMS = ORDER | {"total", "mean"}
HELD = "no gradient flows through weights, conditions, advantages and statistics, but for sums and means in penalties"


def carries_gradient(formula: Expression, through: frozenset[str] = NO_KINDS) -> bool:
    """Whether a gradient of the current policy flows through a formula without sugar.

    `through`: the kinds of statistics and order that carry gradients.
    """
    if isinstance(formula, Apply):
        if formula.operator == STOP or formula.is_condition:
            return False
        return any(carries_gradient(a, through) for a in formula.arguments)
    if isinstance(formula, Summary):
        return formula.word in through and carries_gradient(desugar(formula.formula), through)
    current = isinstance(formula, LogProb) and not formula.policy.is_frozen
    return current or isinstance(formula, (Density, Gated)) or formula in (residual, token_log_ratio)


def check_stops(h: Outline, here: str) -> None:
    """Raises SpecError for a `stop` of a formula without a gradient, and for a `stop` where no gradient flows."""
    for root in roots(h):
        through = {"penalty": SUMS, "density": ORDER}.get(root.role, NO_KINDS)
        for what, stopped, flows in _stops(root.what, root.formula, through, root.role not in ("token", "advantages")):
            if flows and carries_gradient(desugar(stopped), through):
                continue
            raise SpecError(
                f"{here}: {what} says {short(stop(stopped))}",
                required="stop(...) of what moves with the policy: residual, density, token_log_ratio, gated"
                if flows
                else "stop(...) where a gradient flows: in gates, decompositions, recoveries and penalties",
                found=f"{short(stopped)} has no gradient to stop" if flows else HELD,
                remedy=f"write {short(stopped)}",
            )


def _stops(
    what: str, formula: Expression, through: frozenset[str], flows: bool
) -> Iterator[tuple[str, Expression, bool]]:
    """Yields every stopped formula, outermost first, with its description and whether gradients flow there.

    Formulas in statistics and order are searched too.
    """
    if isinstance(formula, Apply):
        if formula.operator == STOP:
            yield what, formula.arguments[0], flows
        for argument in formula.arguments:
            yield from _stops(what, argument, through, flows and not formula.is_condition)
    elif isinstance(formula, Summary):
        yield from _stops(called(formula), formula.formula, through, flows and formula.word in through)


def check_gradients(h: Outline, here: str) -> None:
    """Raises SpecError for a penalty without a gradient."""
    for name, penalty in h.penalties.items():
        if not carries_gradient(desugar(penalty.formula), SUMS):
            read = set(atoms_within(penalty.formula))
            misspelt = (
                suggest(p.name, [CURRENT]) for a in read if isinstance(a, LogProb) and (p := a.policy).is_passed
            )
            raise SpecError(
                f"{here}: no gradient flows through the penalty '{name}', {short(penalty.formula)}",
                required="a formula of token_log_ratio or log_prob(current), or of their totals, means and order",
                found="largest, some, quantile, deviation, conditions and stop pass no gradient"
                if any(carries_gradient(a) for a in read)
                else "it reads nothing of the current policy, so no update would change by it",
                remedy=next(
                    filter(None, misspelt), "read log_prob(current); what rewards are less by is for advantages="
                ),
            )
