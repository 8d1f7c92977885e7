"""Fibrations and hierarchies: what a user declares, immutable, validated, printing as it was written.

Construction checks that a declaration can be *read*: names, types, references. Whether it is *right* is for the laws
(`laws/verify.py`), so a cycle or a kernel that does not sum to 1 can be declared, and is then refused with its witness.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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

from fibration.errors import SpecError
from fibration.language.assumptions import Assumption
from fibration.language.atoms import (
    Attribute,
    Parameter,
    Stratum,
    advantage,
    at,
    channel_sign,
    in_channel,
    mass,
    pull,
    token_log_ratio,
)
from fibration.language.declared import Declared, FrozenMap, Name, check_name
from fibration.language.decompositions import Decomposition
from fibration.language.document import HierarchyDocument, flat, named, written_assumption, written_gate
from fibration.language.expressions import Expression
from fibration.language.gates import Gate, as_gate
from fibration.language.kernels import Fibration
from fibration.language.leaf_measure import masses
from fibration.language.objectives import Objective
from fibration.language.operators import exp, where
from fibration.language.policies import Policy
from fibration.language.read_document import read_document, read_json, source_of
from fibration.language.readable import check, check_arguments, check_elements
from fibration.language.report import Verify
from fibration.language.statistics import total
from fibration.language.strata import Shape
from fibration.language.traversal import atoms, substitute

# The laws (`fibration.laws`), by whether a loss may break them on purpose.
FOUNDATIONS = ("structure", "locality", "markov", "reflecting", "coherent", "objective")
CAN_BE_GIVEN_UP = (
    "recovery", "identity", "first_order", "gradient", "agreement", "mask_open", "orthogonality", "positivity",
    "inward",
)  # fmt: skip


class Hierarchy(Declared):
    """A fibration gating hierarchy (def:fgh): strata, fibrations, a gate on every stratum, `F` and `R`, an objective.

    A gate may be two, a mapping `{"+": gate, "-": gate}` for the channels of a decomposition that is split by sign.
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
        gates: Mapping[Stratum, Gate | Mapping[str, Gate]],
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
        check_arguments(name, given)
        given["gates"] = {s: as_gate(g, f"hierarchy '{name}': the gate on {s}") for s, g in gates.items()}
        given |= {"fibrations": tuple(fibrations), "assume": tuple(assume)}
        check_elements(name, given)
        if orthogonalise not in (None, "projection"):
            raise SpecError(f"hierarchy '{name}': orthogonalise={orthogonalise!r}", required="None or 'projection'")
        super().__init__(name=name, orthogonalise=orthogonalise, **given)  # type: ignore[call-arg]
        check(self)
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
        term = self.objective.of_kept(self.leaves, self.rows) * advantage * exp(token_log_ratio)
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
        return FrozenMap({p.name: p for p in named(self._expressions()) if isinstance(p, Policy)})

    def _named(self, kind: type[Any]) -> Mapping[str, Any]:
        found: dict[str, Any] = {}
        for value in (v for v in named(self._expressions()) if isinstance(v, kind)):
            known = found.setdefault(value.name, value)
            if known != value:
                raise SpecError(
                    f"hierarchy '{self.name}' declares '{value.name}' twice, differently",
                    required="one declaration per name",
                    found=f"{_declaration(known)} and {_declaration(value)}",
                    remedy="reuse one object, or give the second another name",
                )
        return FrozenMap(found)

    def _check_given_up(self) -> None:
        for law, why in self.gives_up.items():
            gives_up = f"hierarchy '{self.name}' gives up '{law}'"
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
        words = (*self.strata, *named(self._expressions()))
        passed = [p.name for p in self.policies.values() if p.is_passed]
        return {
            "name": self.name,
            "strata": list(dict.fromkeys(s.name for s in words if isinstance(s, Stratum))),
            "parameters": [flat(p) for p in self.parameters.values()],
            "attributes": [flat(a) for a in self.attributes.values()],
            "fibrations": [
                {"source": f.source.name, "target": f.target.name, "kernel": f.kernel.written} for f in self.fibrations
            ],
            **({"policies": passed} if passed else {}),
            "gates": {s.name: written_gate(g) for s, g in self.gates.items()},
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


def _declaration(value: Any) -> str:
    return value.declaration() if isinstance(value, Parameter) else repr(value.model_dump())


def gates(h: Hierarchy) -> Iterator[tuple[Stratum, str, Expression]]:
    """Every gate as read on each channel, root first."""
    for stratum in h.order:
        for channel in h.decomposition.channels:
            yield stratum, channel, in_channel(h.gate(stratum), channel)
