"""The JSON form of a hierarchy, and its published schema.

Expressions and constructor calls are text in the grammar of `grammar.py`. Reading a document builds objects and runs
nothing: it looks up every name in the document's own tables and in the registry of constructors. Docstrings of
documents are part of the schema (`docs/hierarchy.schema.json`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fibration.errors import SpecError, located
from fibration.language.assumptions import Assumption, Balanced, balanced, populated
from fibration.language.atoms import SOURCE, TARGET, Attribute, Parameter, Stratum, Total
from fibration.language.declared import check_name
from fibration.language.decompositions import Decomposition
from fibration.language.expressions import Expression
from fibration.language.gates import Gate, GatePerChannel
from fibration.language.grammar import MAX_REASON, MAX_TEXT, parse
from fibration.language.kernels import Fibration, MarkovKernel
from fibration.language.objectives import Objective
from fibration.language.penalties import Penalty
from fibration.language.policies import Policy
from fibration.language.registry import construct
from fibration.language.statistics import atoms_within

NameText = Annotated[str, Field(pattern="^[A-Za-z][A-Za-z0-9_]{0,62}$", max_length=63)]


def _text(description: str, *examples: str) -> Any:
    return Field(max_length=MAX_TEXT, description=description, examples=list(examples))


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ParameterDocument(_Document):
    """A number chosen when the operator is called; the bounds are strict and are assumptions of the proofs."""

    name: NameText
    default: float | dict[str, float] | None = None
    lower: float | None = 0.0
    upper: float | None = None
    per_channel: bool = False
    on: NameText | None = None


class AttributeDocument(_Document):
    """A number given per element of a stratum when an index is built, `lower <= value <= upper`."""

    name: NameText
    on: NameText
    positive: bool = True
    lower: float | None = None
    upper: float | None = None


class FibrationDocument(_Document):
    """Every element of `source` lies over one element of `target`."""

    source: NameText
    target: NameText
    kernel: Annotated[str, _text("a kernel, or its weight", "uniform()", "proportional(count(trajectory))")]


class BalancedDocument(_Document):
    """Two strata that cross in proportional frequencies, on every batch."""

    balanced: Annotated[list[NameText], Field(min_length=2, max_length=2)]


class PopulatedDocument(_Document):
    """No element of `over` without an element of `populated`, on every batch."""

    populated: NameText
    over: NameText


GateText = Annotated[str, _text("a gate, or its formula", "clip_gate(epsilon)", "minimum(residual, high)")]


class GatePerChannelDocument(_Document):
    """A gate for each channel of a decomposition split by sign."""

    plus: Annotated[GateText, Field(alias="+")]
    minus: Annotated[GateText, Field(alias="-")]


FormulaText = Annotated[str, _text("a formula of tokens", "beta * (log_prob(current) - log_prob(reference))**2 / 2")]


class PenaltyDocument(_Document):
    """A penalty with weights of its own, or one that is read at the elements of a stratum."""

    formula: FormulaText
    objective: Annotated[str, _text("the weights of its tokens", "token_mean()")] | None = None
    over: NameText | None = None


class HierarchyDocument(_Document):
    """A fibration gating hierarchy as `fibration` writes and reads it."""

    name: NameText
    strata: Annotated[list[NameText], Field(min_length=1, max_length=64)]
    parameters: Annotated[list[ParameterDocument], Field(max_length=256)] = []
    attributes: Annotated[list[AttributeDocument], Field(max_length=256)] = []
    fibrations: Annotated[list[FibrationDocument], Field(max_length=64)] = []
    policies: Annotated[
        list[NameText], Field(max_length=64, description="whose log-probs a call is given, beside current and old")
    ] = []
    gates: dict[NameText, GateText | GatePerChannelDocument]
    decomposition: Annotated[
        str, _text("how ratios become densities", "signed_log_ratio(scale=1/count(token, over=trajectory))")
    ]
    objective: Annotated[
        str, _text("the weights of the objective", "trajectory_mean()", "token_mean().weigh(exp(log_prob(old)))")
    ]
    gives_up: Annotated[
        dict[str, Annotated[str, Field(max_length=MAX_REASON)]],
        Field(
            description="why a law is broken on purpose: by its name, or by its name and the subject",
            examples=[{"inward of trajectory": "roll-backs look at drift alone"}],
        ),
    ] = {}
    assume: Annotated[list[BalancedDocument | PopulatedDocument], Field(max_length=64)] = []
    orthogonalise: Literal["projection"] | None = None
    rows: NameText = "trajectory"
    groups: Annotated[list[NameText], Field(max_length=64, description="strata that rows lie over, without gates")] = []
    advantages: (
        Annotated[str, _text("advantages as a formula of rewards", "centred(reward, over=prompt_group)")] | None
    ) = None
    penalties: Annotated[dict[NameText, FormulaText | PenaltyDocument], Field(max_length=64)] = {}

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments of `Hierarchy`. SpecError names an entry that cannot be read."""
        here = f"hierarchy '{self.name}'"
        with located(here):
            strata = {n: Stratum(n) for n in self.strata}

        def stratum(name: str, what: str) -> Stratum:
            if name not in strata:
                raise SpecError(f"{here}: {what} names the stratum '{name}'", required=f"one of {', '.join(strata)}")
            return strata[name]

        words = [
            *self.strata,
            *(p.name for p in self.parameters),
            *(a.name for a in self.attributes),
            *self.policies,
        ]
        twice = next((w for w in words if words.count(w) > 1), None)
        if twice is not None:
            raise SpecError(f"{here} declares '{twice}' twice", required="one declaration per name")
        names: dict[str, object] = {"source": SOURCE, "target": TARGET, **strata}
        for p in self.parameters:
            on = None if p.on is None else stratum(p.on, f"parameter '{p.name}'")
            with located(here):
                names[p.name] = Parameter(**{**p.model_dump(), "on": on})
        for a in self.attributes:
            with located(here):
                names[a.name] = Attribute(**{**a.model_dump(), "on": stratum(a.on, f"attribute '{a.name}'")})
        for name in self.policies:
            with located(here):
                names[name] = Policy(check_name(name, "a policy that a call is given"))

        def gate(s: str, text: str | GatePerChannelDocument) -> Gate:
            if isinstance(text, str):
                return construct(Gate, text, names, f"{here}: gate on {s}", Gate)
            parts = {c: gate(f"{s}, channel {c}", t) for c, t in (("+", text.plus), ("-", text.minus))}
            return GatePerChannel(parts["+"], parts["-"])

        def penalty(name: str, given: str | PenaltyDocument) -> Penalty:
            here_it = f"{here}: the penalty '{name}'"
            with located(here_it):
                if isinstance(given, str):
                    return Penalty(parse(given, names, here_it))
                own = given.objective
                return Penalty(
                    parse(given.formula, names, here_it),
                    None if own is None else construct(Objective, own, names, f"{here_it}: objective", Objective),
                    None if given.over is None else stratum(given.over, f"the penalty '{name}'"),
                )

        def advantages(given: str) -> Expression:
            with located(f"{here}: the advantages"):
                return parse(given, names, f"{here}: the advantages")

        return dict(
            name=self.name,
            fibrations=[
                Fibration(
                    stratum(f.source, "a fibration"),
                    stratum(f.target, "a fibration"),
                    construct(MarkovKernel, f.kernel, names, f"{here}: kernel {f.source} → {f.target}", MarkovKernel),
                )
                for f in self.fibrations
            ],
            gates={stratum(s, "a gate"): gate(s, g) for s, g in self.gates.items()},
            decomposition=construct(Decomposition, self.decomposition, names, f"{here}: decomposition"),
            objective=construct(Objective, self.objective, names, f"{here}: objective", Objective),
            gives_up=self.gives_up,
            assume=[_assumption(a, stratum) for a in self.assume],
            orthogonalise=self.orthogonalise,
            rows=strata[self.rows] if self.rows in strata else Stratum(self.rows),
            groups=[stratum(s, "'groups'") for s in self.groups],
            advantages=None if self.advantages is None else advantages(self.advantages),
            penalties={name: penalty(name, given) for name, given in self.penalties.items()},
        )

    def check_used(self, strata: Iterable[Stratum], expressions: Iterable[Expression]) -> None:
        """Raises SpecError for a declared stratum, parameter, attribute or policy that the hierarchy does not use.

        `strata`, `expressions`: those of the hierarchy made from this document.
        """
        read: set[object] = {*strata, Stratum(self.rows), *named(expressions)}
        used = {value.name for value in read if isinstance(value, (Stratum, Parameter, Attribute, Policy))}
        for kind, names, rule in (
            ("stratum", self.strata, "that a fibration joins, a gate is on, or a formula names"),
            ("parameter", [p.name for p in self.parameters], "that a formula reads"),
            ("attribute", [a.name for a in self.attributes], "that a formula reads"),
            ("policy", self.policies, "whose log_prob a formula reads"),
        ):
            idle = next((name for name in names if name not in used), None)
            if idle is not None:
                raise SpecError(
                    f"hierarchy '{self.name}' declares the {kind} '{idle}', which nothing uses",
                    required=f"every {kind} is one {rule}",
                    found=f"used: {', '.join(n for n in names if n in used) or 'none'}",
                    remedy="use it, or leave it out",
                )


def named(expressions: Iterable[Expression]) -> Iterator[object]:
    """Yields all that formulas name: strata, places, parameters, attributes, policies; in order, with repeats."""
    for atom in (a for read in expressions for a in atoms_within(read)):
        value = atom.attribute if isinstance(atom, Total) else atom
        yield value
        yield from (getattr(v, word, None) for v in (atom, value) for word in ("of", "over", "on", "stratum", "policy"))


def flat(value: Parameter | Attribute) -> dict[str, Any]:
    """Returns the JSON form of a parameter or an attribute."""
    return {**value.model_dump(mode="json"), "on": None if value.on is None else value.on.name}


def written_gate(gate: Gate) -> str | dict[str, str]:
    """Returns the JSON form of a gate."""
    return {"+": gate.plus.written, "-": gate.minus.written} if isinstance(gate, GatePerChannel) else gate.written


def written_penalty(penalty: Penalty) -> str | dict[str, str]:
    """Returns the JSON form of a penalty."""
    formula, objective, over = str(penalty.formula), penalty.objective, penalty.over
    if objective is None and over is None:
        return formula
    rest = {"objective": None if objective is None else objective.written, "over": None if over is None else over.name}
    return {"formula": formula, **{k: v for k, v in rest.items() if v is not None}}


def written_assumption(assumption: Assumption) -> dict[str, Any]:
    """Returns the JSON form of an assumption."""
    if isinstance(assumption, Balanced):
        return {"balanced": [assumption.first.name, assumption.second.name]}
    return {"populated": assumption.stratum.name, "over": assumption.over.name}


def _assumption(document: BalancedDocument | PopulatedDocument, stratum: Callable[[str, str], Stratum]) -> Assumption:
    if isinstance(document, BalancedDocument):
        return balanced(*(stratum(s, "an assumption") for s in document.balanced))
    return populated(stratum(document.populated, "an assumption"), over=stratum(document.over, "an assumption"))
