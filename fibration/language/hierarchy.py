"""Fibrations and hierarchies: what a user declares, immutable, validated, printing as it was written.

Construction checks that a declaration can be *read*: names, types, references. Whether it is *right* is for the laws
(`laws/verify.py`), so a cycle or a kernel that does not sum to 1 can be declared, and is then refused with its witness.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    ValidationInfo,
    model_serializer,
    model_validator,
)
from pydantic_core import CoreSchema

from fibration.errors import SpecError, an
from fibration.language.assumptions import Assumption, Balanced, Populated
from fibration.language.atoms import (
    BATCH,
    Attribute,
    Count,
    Parameter,
    Place,
    Stratum,
    Total,
    advantage,
    at,
    channel_sign,
    in_channel,
    mass,
    pull,
    read_at,
    token_log_ratio,
)
from fibration.language.declared import Declared, FrozenMap, Name, check_name
from fibration.language.decompositions import Decomposition
from fibration.language.document import HierarchyDocument, flat, written_assumption
from fibration.language.expressions import Expression
from fibration.language.gates import Gate
from fibration.language.kernels import Fibration
from fibration.language.leaf_measure import masses
from fibration.language.objectives import Objective
from fibration.language.operators import exp, where
from fibration.language.policies import LogProb, Policy
from fibration.language.read_document import read_document, read_json, source_of
from fibration.language.report import Verify
from fibration.language.statistics import total, within
from fibration.language.strata import Shape
from fibration.language.traversal import atoms, substitute

# The laws (`fibration.laws`), by whether a loss may break them on purpose.
FOUNDATIONS = ("structure", "locality", "markov", "reflecting", "coherent", "objective")
CAN_BE_GIVEN_UP = ("recovery", "identity", "first_order", "gradient", "orthogonality", "positivity")


class Hierarchy(Declared):
    """A fibration gating hierarchy (def:fgh): strata, fibrations, a gate on every stratum, `F` and `R`, an objective.

    The strata are those that the fibrations join, or the single gated one. They form a chain, a tree (several strata
    over one), or a quiver (one over several). Tokens are elements of the leaves, each of one of them. `rows` is the
    stratum whose elements are the rows of a batch, one sampled sequence each; it need not be part of the hierarchy.
    `gives_up` maps laws to the reason why this loss breaks them on purpose. `assume` holds what is assumed of every
    batch, `balanced(a, b)` or `populated(a, over=b)`: used in proofs and checked on every index.
    `orthogonalise="projection"` takes residuals of crossed strata by least squares instead of the Möbius recursion.
    """

    name: Name
    fibrations: tuple[Fibration, ...] = ()
    gates: Annotated[Mapping[Stratum, Gate], AfterValidator(FrozenMap)]
    decomposition: Decomposition
    objective: Objective
    gives_up: Annotated[Mapping[str, str], AfterValidator(FrozenMap)] = FrozenMap()
    assume: tuple[Assumption, ...] = ()
    orthogonalise: Literal["projection"] | None = None
    rows: Stratum = Stratum("trajectory")

    def __init__(
        self,
        *,
        name: str,
        gates: Mapping[Stratum, Gate],
        decomposition: Decomposition,
        objective: Objective,
        fibrations: Any = (),
        gives_up: Mapping[str, str] | None = None,
        assume: Any = (),
        orthogonalise: Literal["projection"] | None = None,
        rows: Stratum | None = None,
    ) -> None:
        check_name(name, "a hierarchy")
        given = dict(
            fibrations=fibrations, gates=gates, decomposition=decomposition, objective=objective, assume=assume
        )
        given |= {"gives_up": gives_up or {}, "rows": rows or Stratum("trajectory")}
        for argument, (what, kind, example) in _ARGUMENTS.items():
            _expect(name, what, given[argument], kind, example)
        given |= {"fibrations": tuple(fibrations), "assume": tuple(assume)}
        _check_elements(name, given["fibrations"], gates, given["assume"])
        if orthogonalise not in (None, "projection"):
            raise SpecError(f"hierarchy '{name}': orthogonalise={orthogonalise!r}", required="None or 'projection'")
        super().__init__(name=name, orthogonalise=orthogonalise, **given)  # type: ignore[call-arg]
        self._check_gates()
        self._check_names()
        self._check_objective()
        self._check_assumptions()
        self._check_given_up()

    # ------------------------------------------------------------ structure

    @cached_property
    def strata(self) -> tuple[Stratum, ...]:
        """Every stratum, in the order of the fibrations (finest first when they are written so)."""
        joined = (s for f in self.fibrations for s in (f.source, f.target))
        return tuple(dict.fromkeys([*joined, *self.gates]))

    @cached_property
    def shape(self) -> Shape:
        """The strata as a graph."""
        return Shape(self.strata, self.fibrations)

    @property
    def leaves(self) -> tuple[Stratum, ...]:
        """The sampled strata: those over which nothing lies. Every token is an element of one of them."""
        return self.shape.leaves

    @property
    def roots(self) -> tuple[Stratum, ...]:
        return self.shape.roots

    def coarser(self, stratum: Stratum) -> tuple[Stratum, ...]:
        """Every stratum that `stratum` lies over, nearest first."""
        return self.shape.coarser(stratum)

    @property
    def order(self) -> tuple[Stratum, ...]:
        """Every stratum after those that it lies over; of a chain, from the root to the leaf."""
        return self.shape.order

    # ------------------------------------------------------------ vocabulary

    def gate(self, stratum: Stratum) -> Expression:
        """The gate's formula with every count and total naming its stratum, and the mass in terms of these."""
        g = self.with_mass(at(self.gates[stratum].expression, stratum), stratum)
        return substitute(g, {pull: self.pull(stratum)}) if pull in set(atoms(g)) else g

    def pull(self, stratum: Stratum) -> Expression:
        """What pulls the density of an element up: `Σ μ·w·A·r` over its tokens, in the direction of its channel.

        Where the element has one advantage its sign decides, and it is read instead: on tokens, and on what lies over
        the rows. Elsewhere it is a statistic of tokens, since advantages whose mean is 0 say nothing by it.
        """
        if stratum in self.leaves or self.rows in (stratum, *self.coarser(stratum)):
            return channel_sign * advantage
        term = self.objective.spelled_out(self.leaves, self.rows) * advantage * exp(token_log_ratio)
        for weight in self.objective.weighed:
            term = weight * term
        for keep in self.objective.kept:
            term = where(keep.condition, term, 0)
        return channel_sign * total(term, over=stratum)

    def with_mass(self, expression: Expression, stratum: Stratum) -> Expression:
        """An expression read at a stratum, with its mass written out."""
        return substitute(expression, {mass: self.masses[stratum]}) if mass in set(atoms(expression)) else expression

    @cached_property
    def masses(self) -> Mapping[Stratum, Expression]:
        """The leaf measure that the kernels spread, at every stratum; defined once the law of structure holds."""
        return masses(self.shape, self.decomposition)

    def _expressions(self) -> Iterator[Expression]:
        yield from (f.weight for f in self.fibrations)
        yield from (at(g.expression, s) for s, g in self.gates.items())
        yield from (e for _, e in self.decomposition.densities)
        yield self.decomposition.recovery
        yield self.decomposition.scale
        yield self.objective.weight
        yield from self.objective.formulas

    @cached_property
    def parameters(self) -> Mapping[str, Parameter]:
        """Every parameter, by name, in the order in which it is met."""
        return self._named(Parameter)

    @cached_property
    def attributes(self) -> Mapping[str, Attribute]:
        """Every attribute, by name."""
        return self._named(Attribute)

    @cached_property
    def policies(self) -> Mapping[str, Policy]:
        """Every policy that a formula names, by name."""
        read = (a for e in self._expressions() for inner in within(e) for a in atoms(inner))
        return FrozenMap({a.policy.name: a.policy for a in read if isinstance(a, LogProb)})

    def _named(self, kind: type[Any]) -> Mapping[str, Any]:
        found: dict[str, Any] = {}
        for expression in (e for read in self._expressions() for e in within(read)):
            for atom in atoms(expression):
                value = atom.attribute if isinstance(atom, Total) else atom
                if isinstance(value, kind):
                    known = found.setdefault(value.name, value)
                    if known != value:
                        raise SpecError(
                            f"hierarchy '{self.name}' declares '{value.name}' twice, differently",
                            required="one declaration per name",
                            found=f"{_declaration(known)} and {_declaration(value)}",
                            remedy="reuse one object, or give the second another name",
                        )
        return FrozenMap(found)

    # ------------------------------------------------------------ whether it can be read

    @property
    def _here(self) -> str:
        return f"hierarchy '{self.name}'"

    def _check_gates(self) -> None:
        """Every stratum has a gate, what has a gate is joined by a fibration, and nothing is coarser than the batch."""
        if not self.gates:
            raise SpecError(f"{self._here} has no gate", required="one gate per stratum")
        for stratum in self.strata:
            if stratum not in self.gates:
                raise SpecError(
                    f"{self._here} has no gate on {stratum}",
                    required="one gate per stratum",
                    remedy=f"add {stratum}: identity_gate() to let the level pass, or zero_gate() to remove it",
                )
        for f in self.fibrations:
            if f.source.name == BATCH:
                raise SpecError(
                    f"{self._here} has a fibration {f}",
                    required=f"nothing below '{BATCH}': it is the whole batch, one element",
                    remedy=f"make {BATCH} the root, or give {f.source} another name",
                )
        joined = {s for f in self.fibrations for s in (f.source, f.target)}
        for stratum in self.gates:
            if joined and stratum not in joined:
                raise SpecError(
                    f"{self._here} has a gate on {stratum}, which no fibration joins",
                    required=f"one of {', '.join(s.name for s in self.strata if s in joined)}",
                )

    def _check_names(self) -> None:
        words = [*(s.name for s in self.strata), *self.parameters, *self.attributes, *self.policies]
        for word in words:
            if words.count(word) > 1:
                raise SpecError(f"{self._here} uses the name '{word}' for two things", required="one meaning per name")

    def _check_objective(self) -> None:
        for atom in atoms(self.objective.weight):
            if not self._is_weight(atom):
                raise SpecError(
                    f"{self._here}: the objective weighs tokens by {atom}",
                    required="numbers, parameters of one value, and counts and totals over a row or the batch",
                    remedy="weights must not change with the policy; gates are for that",
                )

    def _is_weight(self, atom: Expression) -> bool:
        """Whether an objective may read `atom`: it is one number per row."""
        place = read_at(atom)
        at_row = not isinstance(place, Stratum) or place in (self.rows, *self.coarser(self.rows))
        if isinstance(atom, Parameter):
            return at_row and not atom.per_channel
        if isinstance(atom, Attribute):
            return at_row
        if not isinstance(atom, (Count, Total)):
            return False
        known = isinstance(atom.of, Place) or atom.of in (*self.strata, self.rows)
        return known and (at_row or atom.over == Stratum(BATCH))

    def _check_assumptions(self) -> None:
        for a in self.assume:
            for s in (a.first, a.second) if isinstance(a, Balanced) else (a.stratum, a.over):
                if s not in self.strata:
                    raise SpecError(
                        f"{self._here} assumes {a!r}, and has no stratum {s}",
                        required=f"strata of the hierarchy: {', '.join(x.name for x in self.strata)}",
                    )
            if isinstance(a, Populated) and a.over not in self.coarser(a.stratum):
                raise SpecError(
                    f"{self._here} assumes {a!r}, and {a.stratum} does not lie over {a.over}",
                    required=f"one of {', '.join(x.name for x in self.coarser(a.stratum)) or 'none: it is a root'}",
                )

    def _check_given_up(self) -> None:
        for law, why in self.gives_up.items():
            gives_up = f"{self._here} gives up '{law}'"
            if law in FOUNDATIONS:
                raise SpecError(f"{gives_up}, on which all the others rest", remedy="mend the hierarchy instead")
            if law not in CAN_BE_GIVEN_UP:
                raise SpecError(gives_up, required=f"one of {', '.join(CAN_BE_GIVEN_UP)}")
            if not why.strip():
                raise SpecError(f"{gives_up} without a reason", required="a sentence that the report can show")

    # ------------------------------------------------------------ use

    # `verify()`: decide every law. Given by the room above, `fibration.laws.verify`, when the package is imported.
    verify: ClassVar[Verify]

    def replace(self, **changes: Any) -> Hierarchy:
        """A copy with some of the arguments changed, validated again."""
        fields = {k: getattr(self, k) for k in type(self).model_fields}
        return Hierarchy(**{**fields, **changes})

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Hierarchy:
        """`replace`, under pydantic's name: what pydantic's own would copy is not validated, and caches go stale."""
        return self.replace(**(update or {}))

    def __repr__(self) -> str:
        fibrations = "".join(f"\n        {f!r}," for f in self.fibrations)
        gates = "".join(f"\n        {s!r}: {g!r}," for s, g in self.gates.items())
        rest = {
            "gives_up": dict(self.gives_up),
            "assume": list(self.assume),
            "orthogonalise": self.orthogonalise,
            "rows": self.rows if self.rows.name != "trajectory" else None,
        }
        extra = "".join(f"\n    {k}={v!r}," for k, v in rest.items() if v)
        middle = f"\n    fibrations=[{fibrations}\n    ]," if fibrations else ""
        return (
            f"Hierarchy(\n    name={self.name!r},{middle}\n    gates={{{gates}\n    }},"
            f"\n    decomposition={self.decomposition!r},\n    objective={self.objective!r},{extra}\n)"
        )

    def __hash__(self) -> int:
        return hash((self.name, self.fibrations, self.gates, self.decomposition, self.objective))

    # ------------------------------------------------------------ JSON

    @model_serializer(mode="plain")
    def _to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "strata": [s.name for s in self.strata],
            "parameters": [flat(p) for p in self.parameters.values()],
            "attributes": [flat(a) for a in self.attributes.values()],
            "fibrations": [
                {"source": f.source.name, "target": f.target.name, "kernel": f.kernel.written} for f in self.fibrations
            ],
            "gates": {s.name: g.written for s, g in self.gates.items()},
            "decomposition": self.decomposition.written,
            "objective": self.objective.written,
            "gives_up": dict(self.gives_up),
            **({"assume": [written_assumption(a) for a in self.assume]} if self.assume else {}),
            **({"orthogonalise": self.orthogonalise} if self.orthogonalise else {}),
            "rows": self.rows.name,
        }

    @model_validator(mode="wrap")
    @classmethod
    def _from_json(cls, data: Any, handler: ModelWrapValidatorHandler[Hierarchy], info: ValidationInfo) -> Hierarchy:
        if isinstance(data, Mapping) and not isinstance(data.get("decomposition"), Decomposition):
            document = read_document(data, source_of(info.context))
            made = cls(**document.arguments())
            document.check_used(made.strata, made._expressions())
            return made
        return handler(data)

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, **options: Any) -> Hierarchy:
        """Read JSON text; SpecError for what is none, for a key given twice, and for what declares no hierarchy."""
        source = source_of(options.get("context"))
        value = read_json(json_data, source)
        if not isinstance(value, dict):
            read_document(value, source)
        return cls.model_validate(value, **options)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return handler(HierarchyDocument.__pydantic_core_schema__)


# What an argument is called in messages, what it has to be, and an example of one.
_ARGUMENTS: Mapping[str, tuple[str, type, str]] = {
    "fibrations": ("collection of fibrations", Iterable, "fibrations=[Fibration(token, trajectory, uniform())]"),
    "gates": ("collection of gates", Mapping, "gates={token: identity_gate()}"),
    "decomposition": ("decomposition", Decomposition, "signed_log_ratio(scale=...)"),
    "objective": ("objective", Objective, "trajectory_mean()"),
    "rows": ("stratum of the rows", Stratum, "rows=trajectory, a Stratum"),
    "gives_up": ("collection of laws given up", Mapping, "gives_up={'first_order': 'why'}"),
    "assume": ("collection of assumptions", Iterable, "assume=[balanced(domain, modality)]"),
}


def _check_elements(name: str, fibrations: Any, gates: Mapping[Any, Any], assume: Any) -> None:
    for a in assume:
        if not isinstance(a, Assumption):
            raise SpecError(
                f"hierarchy '{name}' assumes {a!r}",
                required="balanced(domain, modality), or populated(image_token, over=trajectory)",
            )
    for f in fibrations:
        _expect(name, "fibration", f, Fibration, "Fibration(token, trajectory, kernel=uniform())")
    for stratum, gate in gates.items():
        _expect(name, "gated stratum", stratum, Stratum, "a Stratum as the key")
        _expect(name, f"gate on {stratum}", gate, Gate, "Gate(expression), or a gate made by one of the functions")


def _expect(name: str, what: str, value: object, kind: type, example: str) -> None:
    if not isinstance(value, kind):
        raise SpecError(
            f"hierarchy '{name}': the {what} is {value!r}",
            required=an(kind.__name__),
            remedy=f"for example {example}",
        )


def _declaration(value: Any) -> str:
    return value.declaration() if isinstance(value, Parameter) else repr(value.model_dump())


def gates(h: Hierarchy) -> Iterator[tuple[Stratum, str, Expression]]:
    """Every gate as read on each channel, root first."""
    for stratum in h.order:
        for channel in h.decomposition.channels:
            yield stratum, channel, in_channel(h.gate(stratum), channel)
