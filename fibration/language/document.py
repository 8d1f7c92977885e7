"""The JSON form of a hierarchy, its published schema, and its reader.

Expressions and constructor calls are text in the grammar of `grammar.py`. Reading a document builds objects and runs
nothing: it looks up every name in the document's own tables and in the registry of constructors. Docstrings of
documents are part of the schema (`docs/hierarchy.schema.json`). Pydantic finds what is wrong; errors say it in the
words of the language.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, GetPydanticSchema, ValidationError
from pydantic_core import core_schema

from fibration.errors import NoHierarchy, SpecError, located, shown, suggest
from fibration.language.atoms import SOURCE, TARGET, Attribute, Parameter, Stratum
from fibration.language.declared import NAME_RULE, Policy, check_name
from fibration.language.expressions import Expression
from fibration.language.gates import Decomposition, Gate, GatePerChannel
from fibration.language.grammar import MAX_REASON, MAX_TEXT, construct, parse
from fibration.language.objectives import Objective, Penalty
from fibration.language.statistics import named
from fibration.language.strata import Fibration, MarkovKernel, balanced, populated

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


NEEDED = [name for name, field in HierarchyDocument.model_fields.items() if field.is_required()]
TELLING = {*NEEDED} - {"name"}  # no hierarchy lacks them all, and many other documents have a name
# By the type of pydantic's error: unknown fields come first, since they explain missing ones.
RANKS = {"extra_forbidden": 0, "missing": 2}
TYPES = {
    "string_type": "a text", "list_type": "a list", "dict_type": "an object", "model_type": "an object",
    "float_type": "a number, or null", "bool_type": "true or false",
}  # fmt: skip
SCHEMA = "the schema: fibration show fiberpo --format schema"


@dataclass(frozen=True)
class GivenTwice:
    """A JSON object with a key that it has twice, and the values of the key. JSON readers keep the last one."""

    key: str
    values: list[Any]
    object: dict[str, Any]


def marked(pairs: list[tuple[str, Any]]) -> dict[str, Any] | GivenTwice:
    """For `object_pairs_hook`: an object, or GivenTwice in its place, which no field accepts: pydantic says where."""
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    key = next(k for k, times in Counter(k for k, _ in pairs).items() if times > 1)
    return GivenTwice(key, [v for k, v in pairs if k == key], found)


def read_json(text: str | bytes | bytearray) -> Any:
    """Returns the value of a JSON text. Raises SpecError for invalid JSON."""
    try:
        return json.loads(text, object_pairs_hook=marked, parse_constant=int)  # int("NaN") raises ValueError
    except (ValueError, RecursionError) as error:
        found = "objects or lists that are nested too deep" if isinstance(error, RecursionError) else str(error)
    raise SpecError(
        "the document is no hierarchy: it is no JSON", required="one JSON object", found=found, remedy=SCHEMA
    )


def read_document(value: Any) -> HierarchyDocument:
    """Returns the document of a JSON value. Raises SpecError, or NoHierarchy for a document of another kind."""
    try:
        few = dict(islice(value.items(), 1_000)) if isinstance(value, Mapping) else value  # more are wrong as well
        return HierarchyDocument.model_validate(few)
    except ValidationError as invalid:
        errors: list[Any] = sorted(invalid.errors(include_url=False), key=lambda e: RANKS.get(e["type"], 1))
    if errors[0]["type"] == "extra_forbidden":
        errors = [e for e in errors if e["type"] != "missing"]
    required, found, remedy = _parts(errors[0])
    others = f"; and then: {', '.join(_what(e, value) for e in errors[1:4])}" if errors[1:] else ""
    keys = value.object if isinstance(value, GivenTwice) else value
    is_hierarchy = isinstance(keys, Mapping) and not TELLING.isdisjoint(keys)
    raise (SpecError if is_hierarchy else NoHierarchy)(
        f"the document is no hierarchy: {_what(errors[0], value)}",
        required=required,
        found=found,
        remedy=(remedy or SCHEMA) + others,
    )


def _parts(error: Any) -> tuple[str, str, str]:
    """Returns what one of pydantic's errors requires, what it found, and a fix, which may be ""."""
    kind, value, loc = error["type"], error["input"], error["loc"]
    if isinstance(value, GivenTwice):
        values = " and ".join(map(shown, value.values[:3]))
        return "every key once", values, "leave all but one out, or give the others their own names"
    keys = [str(k) for k in islice(value, 50)] if isinstance(value, Mapping) else []
    if kind in RANKS:
        fields = HierarchyDocument.model_fields
        if loc[1:]:  # of an entry of a list of documents
            fields = get_args(fields[loc[0]].annotation)[0].model_fields
        if kind == "missing":
            needed = ", ".join(name for name, field in fields.items() if field.is_required())
            return f"all of {needed}", ", ".join(keys) or "nothing", ""
        return f"one of {', '.join(fields)}", shown(value), suggest(str(loc[-1]), fields)
    rule = TYPES.get(kind, error["msg"].removeprefix("Input should be "))
    rule = rule if loc else f"an object with {', '.join(NEEDED)}"
    words = re.findall(r'"(\w+)"', rule)  # the fields that a rule names
    return rule, shown(value), next((s for k in keys if k not in words and (s := suggest(k, words))), "")


def _what(error: Any, document: Any) -> str:
    """Returns what is wrong, and its place: `parameters.epsilon.lower`. Entries of lists go by name, or by number."""
    words = []
    for part in error["loc"]:
        entries = dict(enumerate(document)) if isinstance(document, list) else document
        document = entries.get(part) if isinstance(entries, Mapping) else None
        name = document.get("name") if isinstance(part, int) and isinstance(document, Mapping) else None
        words.append(name if isinstance(name, str) else str(part))
    place = shown(".".join(words))
    if isinstance(error["input"], GivenTwice):
        return f"{shown(error['input'].key)} is given twice{f' in {place}' if words else ''}"
    if not words:
        return f"it is {shown(error['input'])}"
    return {"extra_forbidden": "unknown field ", "missing": "no "}.get(error["type"], "") + place
