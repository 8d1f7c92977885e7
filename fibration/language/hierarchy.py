"""`Hierarchy`: the whole declaration of a loss, immutable, validated, printed as it was written.

Construction checks that a declaration can be *read*: names, types, references. The laws (`laws/verify.py`) decide
whether it is *right*: a cycle, or a kernel that does not sum to 1, can be declared, and is then refused with a witness.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from fractions import Fraction
from importlib import import_module
from typing import Any, Literal

from pydantic import BaseModel, GetJsonSchemaHandler, ModelWrapValidatorHandler, model_serializer, model_validator
from pydantic_core import CoreSchema

from fibration.errors import SpecError, located, suggest
from fibration.language.atoms import Density, Stratum, in_channel, reward
from fibration.language.declared import check_name
from fibration.language.document import HierarchyDocument, read_document, read_json
from fibration.language.expressions import Expression, as_number
from fibration.language.gates import Decomposition, Gate, GatePerChannel, as_gate
from fibration.language.objectives import Objective, as_penalty
from fibration.language.outline import Outline
from fibration.language.readable import check, check_arguments, check_elements
from fibration.language.report import BUDGET, LEFT, Report, parts, short
from fibration.language.statistics import Aggregate, Ordered, atoms_within, named, of_rows
from fibration.language.strata import Balanced
from fibration.language.traversal import atoms

# The laws (`fibration.laws`), by whether a loss may break them on purpose.
FOUNDATIONS = ("structure", "locality", "markov", "reflecting", "coherent", "objective")
CAN_BE_GIVEN_UP = (
    "recovery", "identity", "first_order", "gradient", "agreement", "mask_open", "causal",
    "baseline", "kl_gradient", "orthogonality", "positivity", "inward",
)  # fmt: skip
ALWAYS = ("parameters", "attributes", "fibrations", "gives_up")  # fields of a document that may be empty
OF_LEVELS = ("identity", "orthogonality", "inward")


class Hierarchy(Outline):
    """The declaration of a loss (def:fgh): strata, fibrations, gates, a decomposition and an objective.

    The strata are those of `fibrations`, or the single stratum with a gate. They form a chain, a tree (several strata
    directly over one), or a quiver (one stratum directly over several). Every token is an element of exactly one leaf.

    - `gates`: a mapping from each stratum to its gate. If the decomposition splits by sign, a stratum may have a
      mapping `{"+": gate, "-": gate}` instead.
    - `rows`: the stratum whose elements are the rows of a batch, one sampled sequence each. It need not be part of the
      hierarchy.
    - `gives_up`: a mapping from laws that this loss breaks on purpose to the reasons. A key is a law, or a law of one
      subject, such as `"inward of trajectory"`.
    - `assume`: assumptions about every batch, `balanced(a, b)` or `populated(a, over=b)`. Proofs use them, and every
      index is checked against them.
    - `orthogonalise="projection"`: computes residuals of crossed strata by least squares. Default: the Möbius
      recursion.
    - `groups`: further strata that rows belong to, without gates. `op.index` takes a label for each row, and
      statistics may run over them.
    - `advantages`: a formula of `reward`. Calls then take rewards.
    - `penalties`: a mapping from names to formulas, or to `Penalty` objects. They are subtracted from the objective,
      without an advantage.

    Raises SpecError for a declaration that cannot be read. `verify` decides the laws.
    """

    def __new__(cls, *_: object, **given: object) -> Hierarchy:
        """Raises SpecError for an unknown argument; Python's own error would not suggest a known one."""
        for argument in (name for name in given if name not in cls.model_fields):
            likely = suggest(argument, cls.model_fields).replace("'gates'", "gates={token: ...}")
            known = ", ".join(cls.model_fields)
            raise SpecError(f"Hierarchy has no argument '{argument}'", required=f"some of {known}", remedy=likely)
        return super().__new__(cls)

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
        groups: Any = (),
        advantages: Expression | None = None,
        penalties: Mapping[str, Any] | None = None,
    ) -> None:
        check_name(name, "a hierarchy")
        given = dict(fibrations=fibrations, gates=gates, decomposition=decomposition, objective=objective)
        given |= {"assume": assume, "groups": groups, "rows": Stratum("trajectory") if rows is None else rows}
        given |= {"gives_up": {} if gives_up is None else gives_up, "penalties": {} if penalties is None else penalties}
        check_arguments(name, given)
        given["gates"] = {s: as_gate(g, f"hierarchy '{name}': the gate on {s}") for s, g in gates.items()}
        given |= {"fibrations": tuple(fibrations), "assume": tuple(assume), "groups": tuple(groups)}
        terms = {}
        for k, v in given["penalties"].items():
            check_name(k, f"hierarchy '{name}': a penalty")
            with located(f"hierarchy '{name}': the penalty '{k}'"):
                p = as_penalty(v)
            terms[k] = p.model_copy(update={"formula": of_rows(p.formula, given["rows"])})
        given["penalties"] = terms
        if advantages is not None:
            formula = as_number(advantages, f"hierarchy '{name}': the advantages", "write where(condition, 1, 0)")
            given["advantages"] = of_rows(formula, given["rows"])
        check_elements(name, given)
        if orthogonalise not in (None, "projection"):
            raise SpecError(f"hierarchy '{name}': orthogonalise={orthogonalise!r}", required="None or 'projection'")
        super().__init__(name=name, orthogonalise=orthogonalise, **given)  # type: ignore[call-arg]
        check(self)
        self._check_given_up()

    def _check_given_up(self) -> None:
        for key, why in self.gives_up.items():
            law, about = parts(key)
            gives_up = f"hierarchy '{self.name}' gives up '{key}'"
            if law in FOUNDATIONS:
                raise SpecError(f"{gives_up}, on which all the others rest", remedy="mend the hierarchy instead")
            if law not in CAN_BE_GIVEN_UP:
                raise SpecError(
                    gives_up, required=f"one of {', '.join(CAN_BE_GIVEN_UP)}", remedy=suggest(law, CAN_BE_GIVEN_UP)
                )
            # The subjects of other laws are not checked here.
            known = [*(s.name for s in self.strata), "hierarchy", "reference"] if law in OF_LEVELS else []
            known = list(self.penalties) if law == "kl_gradient" else known
            name = short(about).removeprefix(LEFT)
            if about and known and name not in known:
                keys = [f"{law} of {n}" for n in known]
                raise SpecError(gives_up, required=f"{law}, or one of {', '.join(keys)}", remedy=suggest(key, keys))
            if not why.strip():
                raise SpecError(
                    f"{gives_up} without a reason",
                    required="a sentence that the report can show",
                    remedy=f"gives_up={{{key!r}: 'why this loss breaks it'}}",
                )

    # ------------------------------------------------------------ use

    def verify(self, timeout: float | None = BUDGET) -> Report:
        """Decide every law for batches of all sizes, and return a `Report`. It needs no batch and no model.

        - `timeout`: seconds for all laws and facts together; None: no limit. A law that runs out of time is undecided.
        - If `structure` or `locality` fails, later laws are not decided and have no verdict.
        - A law that raises an exception is undecided. Its verdict contains the exception and asks for an issue.
        - Verdicts are cached, also on disk. Verdicts that ran out of time or raised an exception are not.

        `verify` does not raise for a law that fails: `Report.raise_for_status` raises LawError. docs/laws.md lists the
        laws. The module of each law names its source: def:uniform_fibration, def:fgh, thm:fbg_first_order.
        """
        return import_module("fibration.laws.verify").verify(self, timeout)  # type: ignore[no-any-return]

    def _repr_html_(self) -> str:  # of notebooks, as is the next, for those that print on paper
        return import_module("fibration.printing.pages").hierarchy(self)  # type: ignore[no-any-return]

    def _repr_latex_(self) -> str:
        return import_module("fibration.printing.latex").displayed(self)  # type: ignore[no-any-return]

    def replace(self, **changes: Any) -> Hierarchy:
        """Returns a copy with some of the arguments changed, validated again."""
        fields = {k: getattr(self, k) for k in type(self).model_fields}
        return Hierarchy(**{**fields, **changes})

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Hierarchy:
        """`replace`, under pydantic's name. Pydantic's own copy would skip validation and keep stale caches."""
        return self.replace(**(update or {}))

    def __repr__(self) -> str:
        fibrations = "".join(f"\n        {f!r}," for f in self.fibrations)
        gates = "".join(f"\n        {s!r}: {g!r}," for s, g in self.gates.items())
        rest = {
            "gives_up": dict(self.gives_up),
            "assume": list(self.assume),
            "orthogonalise": self.orthogonalise,
            "rows": self.rows if self.rows.name != "trajectory" else None,
            "groups": list(self.groups),
            "advantages": self.advantages,
            "penalties": dict(self.penalties),
        }
        extra = "".join(f"\n    {k}={v!r}," for k, v in rest.items() if isinstance(v, Expression) or v)
        middle = f"\n    fibrations=[{fibrations}\n    ]," if fibrations else ""
        return (
            f"Hierarchy(\n    name={self.name!r},{middle}\n    gates={{{gates}\n    }},"
            f"\n    decomposition={self.decomposition!r},\n    objective={self.objective!r},{extra}\n)"
        )

    def __hash__(self) -> int:
        return hash((self.name, self.fibrations, self.gates, self.decomposition, self.objective))

    # ------------------------------------------------------------ JSON

    def _places(self) -> Iterator[Stratum]:
        """Yields the strata that are used even if no formula names them."""
        yield from (*self.strata, *self.groups)
        yield from (p.over for p in self.penalties.values() if p.over is not None)

    @model_serializer(mode="plain")
    def _to_json(self) -> dict[str, Any]:
        words = (*self._places(), *named(self._expressions()))
        document: dict[str, Any] = {
            "name": self.name,
            "strata": list(dict.fromkeys(s.name for s in words if isinstance(s, Stratum))),
            "parameters": [{**p.model_dump(), "on": p.on and p.on.name} for p in self.parameters.values()],
            "attributes": [{**a.model_dump(), "on": a.on.name} for a in self.attributes.values()],
            "fibrations": [
                {"source": f.source.name, "target": f.target.name, "kernel": f.kernel.written} for f in self.fibrations
            ],
            "policies": [p.name for p in self.policies.values() if p.is_passed],
            "gates": {
                s.name: {"+": g.plus.written, "-": g.minus.written} if isinstance(g, GatePerChannel) else g.written
                for s, g in self.gates.items()
            },
            "decomposition": self.decomposition.written,
            "objective": self.objective.written,
            "gives_up": dict(self.gives_up),
            "assume": [
                {"balanced": [a.first.name, a.second.name]}
                if isinstance(a, Balanced)
                else {"populated": a.stratum.name, "over": a.over.name}
                for a in self.assume
            ],
            "orthogonalise": self.orthogonalise,
            "rows": self.rows.name,
            "groups": [s.name for s in self.groups],
            "advantages": None if self.advantages is None else str(self.advantages),
            "penalties": {},
        }
        for name, p in self.penalties.items():
            rest = {"objective": p.objective and p.objective.written, "over": p.over and p.over.name}
            form = {"formula": str(p.formula), **{k: v for k, v in rest.items() if v is not None}}
            document["penalties"][name] = form if len(form) > 1 else form["formula"]
        return {k: v for k, v in document.items() if v or k in ALWAYS}

    @model_validator(mode="wrap")
    @classmethod
    def _from_json(cls, data: Any, handler: ModelWrapValidatorHandler[Hierarchy]) -> Hierarchy:
        built = isinstance(data, Mapping) and isinstance(data.get("decomposition"), Decomposition)
        if built or isinstance(data, Hierarchy):
            return handler(data)
        document = read_document(data)
        made = cls(**document.arguments())
        document.check_used(made._places(), made._expressions())
        return made

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, **options: Any) -> Hierarchy:
        """Reads JSON text. SpecError for invalid JSON, a key given twice, and JSON that declares no hierarchy."""
        return cls.model_validate(read_json(json_data), **options)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return handler(HierarchyDocument.__pydantic_core_schema__)


def gates(h: Hierarchy) -> Iterator[tuple[Stratum, str, Expression]]:
    """Yields every gate as read on each channel, root first."""
    for stratum in h.order:
        for channel in h.decomposition.channels:
            yield stratum, channel, in_channel(h.gate(stratum), channel)


def adds_up_levels(h: Hierarchy) -> bool:
    """Whether a coefficient is the sum of what several levels pass on.

    A gate that reads densities passes pulls on to these too, and a projection does not subtract coarser levels.
    """
    atomic = not any(atoms(gate, Density) for _, _, gate in gates(h))
    return len(h.order) > 1 and h.objective.estimator == "ratio" and atomic and h.orthogonalise is None


def adds_up_tokens(h: Hierarchy) -> bool:
    """Whether the formula of advantages adds up rewards over tokens, as a reward-to-go does.

    It needs one reward per token: a row's reward, repeated at each of its tokens, would count once per token.
    """
    return h.advantages is not None and any(
        atom.of is None and reward in atoms_within(atom.formula)
        for atom in atoms_within(h.advantages)
        if isinstance(atom, Ordered) or (isinstance(atom, Aggregate) and atom.kind == "total")
    )


HERE = __name__.rpartition(".")[0] + "."


def fingerprint(hierarchy: Hierarchy) -> str | None:
    """Returns a digest of every field of every object in a hierarchy; None if the class of an object is the user's own.

    It reads fields, not the JSON form: JSON names a constructor without its formula, which its author may change. No
    field shows what a user's subclass does.
    """
    try:
        return hashlib.sha256(json.dumps(_plain(hierarchy)).encode()).hexdigest()
    except _NotOurs:
        return None


class _NotOurs(Exception):
    """An object's class is not of `fibration.language`."""


def _plain(value: object) -> Any:
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Fraction):
        return ["Fraction", str(value)]
    if isinstance(value, Mapping):
        return ["Mapping", *([_plain(k), _plain(v)] for k, v in value.items())]
    if isinstance(value, tuple):
        return ["tuple", *map(_plain, value)]
    kind = type(value)
    if not kind.__module__.startswith(HERE):
        raise _NotOurs
    if isinstance(value, BaseModel):
        names = list(type(value).model_fields)
    else:
        names = [f.name for f in dataclasses.fields(value) if f.init]  # type: ignore[arg-type]
    return [kind.__qualname__, *(_plain(getattr(value, name)) for name in names)]
