"""The JSON form of a hierarchy, and its published schema.

Expressions and constructor calls are text in the grammar of `grammar.py`. Reading a document builds objects and runs
nothing: it looks up every name in the document's own tables and in the registry of constructors. Docstrings of
documents are part of the schema (`docs/hierarchy.schema.json`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, GetPydanticSchema
from pydantic_core import core_schema

from fibration.errors import SpecError, located
from fibration.language.assumptions import balanced, populated
from fibration.language.atoms import SOURCE, TARGET, Attribute, Parameter, Stratum, Total
from fibration.language.declared import NAME_RULE, check_name
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

# What an error states for a field with several forms.
DEFAULT = "a number, one each for '+' and '-', or null"
GATE = f"a text, or one text each for '+' and '-', of at most {MAX_TEXT} characters"
PENALTY = (
    f'a text of at most {MAX_TEXT} characters, {{"formula": text, "objective": text}}, or {{..., "over": stratum}}'
)
ASSUMPTION = '{"balanced": [A, B]}, or {"populated": A, "over": B}'


def _rule(text: str) -> GetPydanticSchema:
    """Annotates a field with what all its errors state: pydantic states a pattern, or an error for each alternative."""
    return GetPydanticSchema(
        lambda source, handler: core_schema.custom_error_schema(handler(source), "rule", custom_error_message=text)
    )


NameText = Annotated[str, Field(pattern="^[A-Za-z][A-Za-z0-9_]{0,62}$", max_length=63), _rule(NAME_RULE)]


def _text(description: str, *examples: str) -> Any:
    return Field(max_length=MAX_TEXT, description=description, examples=list(examples))


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ParameterDocument(_Document):
    """A number chosen when the operator is called; the bounds are strict and are assumptions of the proofs."""

    name: NameText
    default: Annotated[float | dict[str, float] | None, _rule(DEFAULT)] = None
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
    gates: dict[NameText, Annotated[GateText | GatePerChannelDocument, _rule(GATE)]]
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
    assume: Annotated[
        list[Annotated[BalancedDocument | PopulatedDocument, _rule(ASSUMPTION)]], Field(max_length=64)
    ] = []
    orthogonalise: Annotated[Literal["projection"] | None, _rule("'projection', or null")] = None
    rows: NameText = "trajectory"
    groups: Annotated[list[NameText], Field(max_length=64, description="strata that rows lie over, without gates")] = []
    advantages: (
        Annotated[str, _text("advantages as a formula of rewards", "centred(reward, over=prompt_group)")] | None
    ) = None
    penalties: Annotated[
        dict[NameText, Annotated[FormulaText | PenaltyDocument, _rule(PENALTY)]], Field(max_length=64)
    ] = {}

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments of `Hierarchy`. SpecError names an entry that cannot be read."""
        here = f"hierarchy '{self.name}'"
        with located(here):
            strata = {n: Stratum(n) for n in self.strata}

        def stratum(name: str, what: str) -> Stratum:
            if name not in strata:
                raise SpecError(f"{here}: {what} names the stratum '{name}'", required=f"one of {', '.join(strata)}")
            return strata[name]

        given = [(kind, d) for kind, ds in ((Parameter, self.parameters), (Attribute, self.attributes)) for d in ds]
        words = [*self.strata, *self.policies, *(d.name for _, d in given)]
        twice = next((w for w in words if words.count(w) > 1), None)
        if twice is not None:
            raise SpecError(f"{here} declares '{twice}' twice", required="one declaration per name")
        names: dict[str, object] = {"source": SOURCE, "target": TARGET, **strata}
        for kind, d in given:
            with located(here):
                on = None if d.on is None else stratum(d.on, f"{kind.__name__.lower()} '{d.name}'")
                names[d.name] = kind(**{**d.model_dump(), "on": on})
        for name in self.policies:
            with located(here):
                names[name] = Policy(check_name(name, "a policy that a call is given"))

        def gate(s: str, text: str | GatePerChannelDocument) -> Gate:
            if isinstance(text, str):
                return construct(Gate, text, names, f"{here}: gate on {s}", Gate)
            return GatePerChannel(gate(f"{s}, channel +", text.plus), gate(f"{s}, channel -", text.minus))

        def penalty(name: str, given: str | PenaltyDocument) -> Penalty:
            what, d = f"{here}: the penalty '{name}'", given if isinstance(given, PenaltyDocument) else None
            objective = d and d.objective and construct(Objective, d.objective, names, f"{what}: objective", Objective)
            with located(what):
                over = d and d.over and stratum(d.over, f"the penalty '{name}'")
                return Penalty(parse(d.formula if d else given, names, what), objective, over)

        advantages, what = None, f"{here}: the advantages"
        if self.advantages is not None:
            with located(what):
                advantages = parse(self.advantages, names, what)
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
            assume=[
                balanced(*(stratum(s, "an assumption") for s in a.balanced))
                if isinstance(a, BalancedDocument)
                else populated(stratum(a.populated, "an assumption"), over=stratum(a.over, "an assumption"))
                for a in self.assume
            ],
            orthogonalise=self.orthogonalise,
            rows=strata[self.rows] if self.rows in strata else Stratum(self.rows),
            groups=[stratum(s, "'groups'") for s in self.groups],
            advantages=advantages,
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
