"""Checks that a declaration can be read: types, names, and references between its parts.

The laws decide whether the declaration is correct.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fibration.errors import SpecError, an, located, suggest
from fibration.language.atoms import BATCH, Attribute, Count, Parameter, Place, Stratum, Total, pull, read_at
from fibration.language.declared import Declared
from fibration.language.expressions import Expression
from fibration.language.gates import Decomposition, Gate, GatePerChannel
from fibration.language.grammar import MAX_REASON, MAX_TEXT
from fibration.language.objectives import Objective
from fibration.language.outline import Outline, whole_batch
from fibration.language.strata import Assumption, Balanced, Fibration, Populated
from fibration.language.token_formulas import check_gradients, check_stops, check_token_formulas
from fibration.language.traversal import atoms

# For each argument: its description in messages, its required type, and an example. Then the same for its elements.
_ARGUMENTS: Mapping[str, tuple[str, type, str]] = {
    "fibrations": ("collection of fibrations", Iterable, "fibrations=[Fibration(token, trajectory, uniform())]"),
    "gates": ("collection of gates", Mapping, "gates={token: identity_gate()}"),
    "decomposition": ("decomposition", Decomposition, "ratio_deviation() or log_ratio(), called"),
    "objective": ("objective", Objective, "token_mean() or trajectory_mean(), called"),
    "rows": ("stratum of the rows", Stratum, "rows=trajectory, a Stratum"),
    "gives_up": ("collection of laws given up", Mapping, "gives_up={'first_order': 'why'}"),
    "assume": ("collection of assumptions", Iterable, "assume=[balanced(domain, modality)]"),
    "groups": ("collection of groups", Iterable, "groups=[prompt_group]"),
    "penalties": ("collection of penalties", Mapping, "penalties={'kl': beta * token_log_ratio**2 / 2}"),
}
_ELEMENTS: Mapping[str, tuple[str, Any, str]] = {
    "assume": ("assumption", Assumption, "balanced(domain, modality), or populated(image_token, over=trajectory)"),
    "groups": ("group", Stratum, "groups=[prompt_group], strata that rows lie over"),
    "fibrations": ("fibration", Fibration, "Fibration(token, trajectory, kernel=uniform())"),
    "gates": ("gated stratum", Stratum, "gates={token: ...}, with the stratum and not its name"),
    "gives_up": ("law given up", str, "gives_up={'first_order': 'why'}"),
}


def check_arguments(name: str, given: Mapping[str, Any]) -> None:
    """Raises SpecError for an argument of a hierarchy that has the wrong type."""
    for argument, (what, kind, example) in _ARGUMENTS.items():
        value = given[argument]
        if kind is Iterable and isinstance(value, (Declared, str, Mapping)):
            raise SpecError(
                f"hierarchy '{name}': {argument}={value!r}", required="a list", remedy=f"for example {example}"
            )
        _expect(name, what, value, kind, example)


def check_elements(name: str, given: Mapping[str, Any]) -> None:
    """Raises SpecError for an element of a collection that has the wrong type."""
    for argument, expected in _ELEMENTS.items():
        for value in given[argument]:
            _expect(name, expected[0], value, *expected[1:])
    example = "Gate(formula), or what one of the functions returns: clip_gate(0.2)"
    for stratum, gate in given["gates"].items():
        _expect(name, f"gate on {stratum}", gate, Gate, example)
    for law, why in given["gives_up"].items():
        _expect(name, f"reason for giving up {law}", why, str, _ELEMENTS["gives_up"][2])


def _expect(name: str, what: str, value: object, kind: Any, example: str) -> None:
    if not isinstance(value, kind):
        raise SpecError(
            f"hierarchy '{name}': the {what} is {value!r}",
            required=an("text" if kind is str else getattr(kind, "__name__", "Assumption")),
            remedy=f"for example {example}",
        )


def check(h: Outline) -> None:
    """Raises SpecError for the first part of a hierarchy that cannot be read."""
    for check_part in (
        _check_gates, _check_groups, _check_names, _check_objective, _check_penalties, check_token_formulas,
        check_stops, check_gradients, _check_pulls, _check_written, _check_assumptions,
    ):  # fmt: skip
        check_part(h, f"hierarchy '{h.name}'")


def _check_gates(h: Outline, here: str) -> None:
    """Checks that every stratum has a gate that fits the decomposition, and that fibrations join every gated one."""
    if not h.gates:
        raise SpecError(
            f"{here} has no gate", required="one gate per stratum", remedy="gates={token: clip_gate(0.2)}, for instance"
        )
    for stratum in h.strata:
        if stratum not in h.gates:
            raise SpecError(
                f"{here} has no gate on {stratum}",
                required="one gate per stratum",
                remedy=f"add {stratum}: identity_gate() to let the level pass, or zero_gate() to remove it",
            )
    for f in h.fibrations:
        if f.source.name == BATCH:
            raise SpecError(
                f"{here} has a fibration {f}",
                required=f"nothing below '{BATCH}': it is the whole batch, one element",
                remedy=f"make {BATCH} the root, or give {f.source} another name",
            )
    joined = {s for f in h.fibrations for s in (f.source, f.target)}
    for stratum, gate in h.gates.items():
        if joined and stratum not in joined:
            raise SpecError(
                f"{here} has a gate on {stratum}, which no fibration joins",
                required=f"one of {', '.join(s.name for s in h.strata if s in joined)}",
                remedy=f"leave the gate out, or add Fibration({stratum}, ...) or Fibration(..., {stratum})",
            )
        if isinstance(gate, GatePerChannel) and len(h.decomposition.channels) == 1:
            raise SpecError(
                f"{here} has a gate per channel on {stratum}: {gate}",
                required="a decomposition with the channels '+' and '-'",
                found=f"{h.decomposition}, which has one channel",
                remedy="declare one gate, or split the ratio by sign: signed_log_ratio()",
            )


def _check_pulls(h: Outline, here: str) -> None:
    """Checks that the pull is a formula of tokens if a gate reads it. The laws refuse cycles, so they are skipped."""
    for stratum, gate in h.gates.items() if h.leaves else ():
        if pull in atoms(gate.expression):
            with located(f"{here}: the gate on {stratum} reads pull"):
                h.pull(stratum)


def _check_written(h: Outline, here: str) -> None:
    """Checks that the formulas and reasons in the JSON are short enough to be read again."""
    gates = [(s, e) for s, g in h.gates.items() for e in ((g.plus, g.minus) if isinstance(g, GatePerChannel) else (g,))]
    penalties = h.penalties.items()
    parts: list[tuple[str, object, int]] = [
        *((f"kernel {f.name}", f.kernel, MAX_TEXT) for f in h.fibrations),
        *((f"the gate on {s}", one, MAX_TEXT) for s, one in gates),
        ("the decomposition", h.decomposition, MAX_TEXT),
        ("the objective", h.objective, MAX_TEXT),
        ("the formula of advantages", h.advantages, MAX_TEXT),
        *((f"the penalty '{name}'", p.formula, MAX_TEXT) for name, p in penalties),
        *((f"the objective of the penalty '{name}'", p.objective, MAX_TEXT) for name, p in penalties),
        *((f"the reason for giving up '{law}'", why, MAX_REASON) for law, why in h.gives_up.items()),
    ]
    for what, part, limit in parts:
        text = str(part)
        if len(text) > limit:
            raise SpecError(
                f"{here}: {what} has {len(text)} characters when it is written",
                required=f"at most {limit}, so that it can be read again",
                remedy="say it shorter: a formula that is used twice is written twice",
            )


def _check_groups(h: Outline, here: str) -> None:
    """Checks that groups are strata that are not yet in the hierarchy, each named once."""
    for group in h.groups:
        taken = {**dict.fromkeys(h.strata, "a stratum of the hierarchy"), h.rows: "the stratum of the rows"}
        taken[Stratum(BATCH)] = "always there"
        if h.groups.count(group) > 1:
            taken[group] = "named twice"
        if group in taken:
            raise SpecError(
                f"{here} has the group {group}",
                required="strata under the rows without a gate, each once",
                found=f"{group} is {taken[group]}",
                remedy="leave it out of groups=: formulas may name it as it is",
            )


def _check_penalties(h: Outline, here: str) -> None:
    """Checks that a penalty is read at tokens, or at the elements of a stratum below the tokens."""
    known = [s for s in (*whole_batch(h).strata, Stratum(BATCH)) if s not in h.leaves]
    for name, penalty in h.penalties.items():
        if penalty.over is not None and h.leaves and penalty.over not in known:
            of_tokens = penalty.over in h.leaves
            remedy = "leave over= out, and weigh tokens: Penalty(formula, token_mean())" if of_tokens else ""
            names = dict.fromkeys(s.name for s in known)
            raise SpecError(
                f"{here}: the penalty '{name}' is read over {penalty.over}",
                required=f"one of {', '.join(names)}",
                found="penalties are read at tokens without it" if of_tokens else f"no stratum '{penalty.over}'",
                remedy=remedy or suggest(penalty.over.name, names) or f"or declare it: groups=[{penalty.over}]",
            )


def _check_names(h: Outline, here: str) -> None:
    words = [s.name for s in (*dict.fromkeys((*h.strata, h.rows)), *h.groups)]
    words += [*h.parameters, *h.attributes, *h.policies, *h.penalties]
    for word in words:
        if words.count(word) > 1:
            raise SpecError(
                f"{here} uses the name '{word}' for two things",
                required="one meaning per name",
                remedy="rename one of the strata, parameters, attributes, policies or penalties of this name",
            )


def _check_objective(h: Outline, here: str) -> None:
    weights = [("the objective", h.objective.weight)]
    weights += [
        (f"the objective of the penalty '{k}'", p.objective.weight) for k, p in h.penalties.items() if p.objective
    ]
    for what, atom in ((what, atom) for what, weight in weights for atom in atoms(weight)):
        if not _is_weight(h, atom):
            raise SpecError(
                f"{here}: {what} weighs tokens by {atom}",
                required="numbers, parameters of one value, and counts and totals over a row or the batch",
                remedy="these normalise and never change with a policy: gates are for what does, "
                "and objective.weigh(...) for weights of single tokens",
            )


def _is_weight(h: Outline, atom: Expression) -> bool:
    """Whether an objective may read `atom`, which must have one number per row."""
    place = read_at(atom)
    at_row = not isinstance(place, Stratum) or place in (h.rows, *h.coarser(h.rows), *h.groups)
    if isinstance(atom, Parameter):
        return at_row and not atom.per_channel
    if isinstance(atom, Attribute):
        return at_row
    if not isinstance(atom, (Count, Total)):
        return False
    known = isinstance(atom.of, Place) or atom.of in (*h.strata, h.rows, *h.groups)
    return known and (at_row or atom.over == Stratum(BATCH))


def _check_assumptions(h: Outline, here: str) -> None:
    for a in h.assume:
        for s in (a.first, a.second) if isinstance(a, Balanced) else (a.stratum, a.over):
            if s not in h.strata:
                raise SpecError(
                    f"{here} assumes {a!r}, and has no stratum {s}",
                    required=f"strata of the hierarchy: {', '.join(x.name for x in h.strata)}",
                )
        if isinstance(a, Populated) and a.over not in h.coarser(a.stratum):
            raise SpecError(
                f"{here} assumes {a!r}, and {a.stratum} does not lie over {a.over}",
                required=f"one of {', '.join(x.name for x in h.coarser(a.stratum)) or 'none: it is a root'}",
            )
