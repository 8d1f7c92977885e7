"""Objectives, the weights `μ_i` of `J = Σ_i μ_i · 𝒢(r)_i · A_i` (def:rgf), and penalties, which `J` is less.

Every sum and count runs over the whole optimisation batch, never over a micro-batch. A trajectory without an unmasked
token is not counted. A penalty, such as KL or entropy, is not multiplied by an advantage.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Iterable, Sequence
from typing import Any, ClassVar, Literal

from fibration.errors import SpecError, an
from fibration.language.atoms import BATCH, ROWS, Count, Place, Stratum, Total, Where, count
from fibration.language.declared import Declared
from fibration.language.expressions import Expression, as_expression, as_number
from fibration.language.grammar import Written, constructor
from fibration.language.operators import maximum, where
from fibration.language.statistics import total, within
from fibration.language.traversal import applications, transform

# Placeholders that `Objective.spelled_out` resolves: the leaves, and the batch.
LEAF, WHOLE = Place("leaf"), Place(BATCH)


Normaliser = Literal["all", "kept"]


class Keep(Declared):
    """A condition on tokens. A token on which it does not hold adds nothing to the objective.

    `normaliser` selects what `μ` counts: "all" tokens, or the "kept" tokens and the elements with a kept token.
    """

    condition: Expression
    normaliser: Normaliser = "all"


class Objective(Written):
    """The weighted mean of a loss: `J = Σ μ·w·𝒢(r)·A` over the kept tokens.

    - `weight`: `μ`, a formula of counts over a trajectory and over the batch.
    - `weighed`: further weights `w` of single tokens, from `weigh(...)`.
    - `kept`: conditions on tokens, from `keep(...)`.

    No gradient flows through weights or conditions. `estimator` says how the gated ratio enters:

    - `"ratio"`: `J = Σ μ·𝒢(r)·A`.
    - `"score"`: `J = Σ μ·stop(𝒢(r))·A·log π`. Its gradient is `Σ μ·𝒢(r)·A·∇log π`; its value is not the true objective.
    """

    METHODS: ClassVar = ("score", "weigh", "keep")
    weight: Expression
    estimator: Literal["ratio", "score"] = "ratio"
    weighed: tuple[Expression, ...] = ()
    kept: tuple[Keep, ...] = ()

    def __init__(self, weight: object, **data: Any) -> None:
        value = as_number(weight, "an objective's weight", "drop tokens with token_mean().keep({})")
        super().__init__(weight=value, **{"written": f"Objective({value})", **data})  # type: ignore[call-arg]

    def score(self) -> Objective:
        """Returns the objective with the score estimator `Σ μ·stop(𝒢(r))·A·log π` of CISPO and REINFORCE."""
        if self.estimator == "score":
            raise SpecError(
                f"the objective {self.written} is a score estimator already",
                required="one .score()",
                remedy=f"write {self.written}",
            )
        return self.model_copy(update={"estimator": "score", "written": f"{self.written}.score()"})

    def weigh(self, formula: object) -> Objective:
        """Returns the objective with every token's term times a weight `w`: `J = Σ μ·w·𝒢·A`.

        `w` is a formula read at the token: of log-probs, the advantage, counts, attributes, parameters, statistics. No
        gradient flows through `w`. A weight that can be negative is refused.
        """
        value = as_number(formula, "a weight", "write .keep(...)")
        return self.model_copy(update={"weighed": (*self.weighed, value), "written": f"{self.written}.weigh({value})"})

    def keep(self, condition: object, normaliser: Normaliser = "all") -> Objective:
        """Returns the objective over the tokens that meet a condition. The condition reads what `weigh` reads.

        - `normaliser="kept"`: `μ` counts the kept tokens, and the elements with a kept token. It is as if the mask
          removed the other tokens.
        - `normaliser="all"`: `μ` counts all tokens. It is as if the losses of the other tokens were set to 0.
        """
        value = as_expression(condition, "the condition of keep(...)")
        if not value.is_condition:
            raise SpecError(
                f"the condition of keep(...) cannot be the number {value}",
                required="a condition",
                remedy="compare it: x <= bound",
            )
        if normaliser not in ("all", "kept"):
            raise SpecError(f"keep(..., normaliser={normaliser!r})", required="'all' or 'kept'")
        said = "" if normaliser == "all" else f', normaliser="{normaliser}"'
        keep = Keep(condition=value, normaliser=normaliser)
        return self.model_copy(update={"kept": (*self.kept, keep), "written": f"{self.written}.keep({value}{said})"})

    def with_parts(
        self,
        *,
        weight: Expression | None = None,
        estimator: str = "",
        weighed: Iterable[Expression] | None = None,
        kept: Iterable[Keep] | None = None,
    ) -> Objective:
        """Returns the objective with some parts replaced. Raises SpecError for a part that it cannot have."""
        made = Objective(self.weight if weight is None else weight)
        made = made.score() if (estimator or self.estimator) == "score" else made
        for w in self.weighed if weighed is None else weighed:
            made = made.weigh(w)
        for k in self.kept if kept is None else kept:
            made = made.keep(k.condition, k.normaliser)
        return made

    @property
    def formulas(self) -> tuple[Expression, ...]:
        """The weights and conditions of single tokens, read at the leaves."""
        return (*self.weighed, *(k.condition for k in self.kept))

    @property
    def of_penalties(self) -> Objective:
        """The default objective of penalties: `μ` and each `keep` with `normaliser="kept"`, without `weigh`."""
        kept = [keep for keep in self.kept if keep.normaliser == "kept"]
        return self.with_parts(estimator="ratio", weighed=(), kept=kept)

    def of_kept(self, leaves: Sequence[Stratum], rows: Stratum, below: Collection[Stratum]) -> Expression:
        """Returns `μ` at a kept token as a token formula; with `normaliser="kept"`, counts become statistics of tokens.

        `below` holds the strata that every token lies over. Raises SpecError if `μ` counts a stratum that only the
        tokens of some leaves lie over.
        """
        conditions = [k.condition for k in self.kept if k.normaliser == "kept"]
        if not conditions:
            return self.spelled_out(leaves, rows)
        inside = functools.reduce(operator.and_, conditions)

        def gathered(each: Expression, over: Where) -> Expression:
            return total(where(inside, each, 0), over=over)

        def put(atom: Expression) -> Expression:
            if not isinstance(atom, (Count, Total)) or not isinstance(atom.over, Stratum) or atom.of == atom.over:
                return atom
            of, value = atom.of, atom.attribute if isinstance(atom, Total) else as_expression(1)
            if of != LEAF and of not in below:
                raise SpecError(
                    f"{atom} of kept elements is not a statistic of tokens",
                    required=f"counts and totals of strata that every token lies over, or of {LEAF}",
                    found=f"the objective {self.written}, where only some tokens lie over {an(str(of))}",
                    remedy="write normaliser='all', or a gate without pull: inward() reads it",
                )
            of_tokens = of == LEAF or of in leaves
            found = gathered(value if of_tokens else value / maximum(gathered(as_expression(1), of), 1), atom.over)
            # a kept token is part of the sum, so `maximum` changes no number; it shows the proofs that the sum is not 0
            return maximum(found, value) if isinstance(atom, Count) or atom.attribute.positive else found

        return transform(self.spelled_out((), rows), put)

    def spelled_out(self, leaves: Sequence[Stratum], rows: Stratum) -> Expression:
        """Returns `μ` with every place replaced by a stratum. A count of tokens is the sum of the counts of all leaves.

        A count that names no stratum is read at the rows. Without leaves (a cycle) counts of tokens stay as they are.
        """

        def stratum(place: Where) -> Where:
            if place is None:
                return rows
            return {ROWS.name: rows, WHOLE.name: Stratum(BATCH)}[place.name] if isinstance(place, Place) else place

        def put(atom: Expression) -> Expression:
            if isinstance(atom, Total):
                return Total(atom.attribute, stratum(atom.over))
            if not isinstance(atom, Count):
                return atom
            over = stratum(atom.over)
            if atom.of == LEAF:
                counts: list[Expression] = [Count(leaf, over) for leaf in leaves] or [Count(LEAF, over)]
                return functools.reduce(lambda a, b: a + b, counts)
            return Count(stratum(atom.of), over)  # type: ignore[arg-type]

        return transform(self.weight, put)


@constructor(Objective, examples=("trajectory_mean()",))
def trajectory_mean() -> Objective:
    """Takes the mean over trajectories of the mean over tokens: `μ_i = 1/(trajectories · T_τ)` (eq:fiberpo_main)."""
    return Objective(weight=1 / (count(ROWS, over=WHOLE) * count(LEAF, over=ROWS)))


@constructor(Objective, examples=("token_mean()",))
def token_mean() -> Objective:
    """Takes the mean over all tokens of the batch: `μ_i = 1/tokens` (DAPO)."""
    return Objective(weight=1 / count(LEAF, over=WHOLE))


@constructor(Objective, examples=("constant_normaliser(1024)",))
def constant_normaliser(length: Expression) -> Objective:
    """Divides sums over tokens by a constant, and averages rows: `μ_i = 1/(trajectories · length)` (Dr. GRPO).

    `length` is a number of tokens, usually the longest allowed response, or a Parameter.
    """
    return Objective(weight=1 / (count(ROWS, over=WHOLE) * length))


class Penalty(Declared):
    """A term that is subtracted from the objective: `J - Σ_i μ_i·formula_i`. Gradients flow through it.

    - `formula`: read at every token. It may have log-probs of any policies, log ratios, counts, attributes, parameters
      and statistics. Advantages may appear in conditions only.
    - `objective`: the weights of the tokens. Default: the hierarchy's `μ` with each `keep(..., normaliser="kept")`,
      without its `weigh` and every other `keep`.
    - `over`: the formula is read at the elements of this stratum instead, and the term is its mean over them. Gradients
      flow through sums, means and order of tokens, as in `log(1 + total(exp(x), over=prompt_group))`.
    """

    formula: Expression
    objective: Objective | None = None
    over: Stratum | None = None

    def __init__(self, formula: object, objective: object = None, over: object = None, **data: Any) -> None:
        value = as_number(formula, "a penalty", "write where(condition, 1, 0)")
        if objective is not None and not isinstance(objective, Objective):
            raise SpecError(f"the penalty {value} is weighed by {objective!r}", required="an objective: token_mean()")
        if isinstance(objective, Objective) and objective.estimator == "score":
            required = "weights: a penalty has its own gradient"
            raise SpecError(
                f"the penalty {value} is weighed by {objective.written}",
                required=required,
                remedy="leave .score() out, or the objective",
            )
        if over is not None and not isinstance(over, Stratum):
            remedy = f"write over=Stratum({over!r})" if isinstance(over, str) else ""
            raise SpecError(f"the penalty {value} is read over {over!r}", required="a Stratum", remedy=remedy)
        if over is not None and objective is not None:
            raise SpecError(
                f"the penalty {value} is read over {over}, and weighed by {objective.written}",
                required="an objective for tokens, or over= for elements, whose mean is taken",
                remedy="leave one of the two out",
            )
        super().__init__(formula=value, objective=objective, over=over, **data)  # type: ignore[call-arg]

    @property
    def has_root(self) -> bool:
        """Whether the formula has a square root, which has a value and no slope at 0."""
        return any(applications(e, "sqrt") for e in within(self.formula))

    def __repr__(self) -> str:
        said = {"objective": self.objective, "over": self.over}
        rest = "".join(f", {k}={v!r}" for k, v in said.items() if v is not None)
        return f"Penalty({self.formula}{rest})" if rest else str(self.formula)


def as_penalty(value: object) -> Penalty:
    """Returns a Penalty from an entry of `penalties=`: a formula, or a Penalty."""
    return value if isinstance(value, Penalty) else Penalty(value)
