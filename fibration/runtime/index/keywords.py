"""The keywords of `op.index(...)`: the strata that take one, and the keywords of other libraries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fibration.errors import HierarchyIndexError, an, listed, suggest
from fibration.language import keywords
from fibration.language.atoms import BATCH
from fibration.language.hierarchy import Hierarchy
from fibration.runtime.ranks.group import is_group

WAYS = "mask=[B, T] for padded tokens, or offsets=[n+1] for packed ones"
RESPONSE = "pass it as mask=..., True on response tokens"
LENGTHS = "pass offsets=..., the cumulative lengths from 0: [0, *itertools.accumulate(lengths)]"
RANKS = "the ranks that share the batch are group="
OF_CALLS = "op.loss(...) takes it, with the index"
MEANT = {
    **dict.fromkeys((*keywords.MASKS, "masks"), RESPONSE),
    **dict.fromkeys(keywords.WHOLE_MASKS, f"{RESPONSE} only: an attention mask is True on prompts too"),
    **dict.fromkeys(keywords.OFFSETS, "pass it as offsets=..."),
    **dict.fromkeys(keywords.LENGTHS, LENGTHS),
    "position_ids": "pass it as positions=..., if rows are pieces of longer sequences",
    **dict.fromkeys(("groups", "process_group"), RANKS),
    **dict.fromkeys(("log_probs", "old_log_probs", "advantages", "rewards", "policies", "parameters"), OF_CALLS),
}


def takes_labels(h: Hierarchy) -> list[str]:
    """The strata that need labels."""
    rest = (*h.leaves, h.rows)
    return [s.name for s in h.order if s not in rest and s.name != BATCH] + [s.name for s in h.groups]


def refuse_positional(h: Hierarchy, given: tuple[Any, ...]) -> None:
    if given:
        words = listed(an(type(value).__name__) for value in given)
        labels = "".join(f", {name}=..." for name in takes_labels(h))
        raise HierarchyIndexError(
            f"index of '{h.name}': {words} without a keyword",
            required=WAYS + (f", and labels for {', '.join(takes_labels(h))}" if labels else ""),
            remedy=f"op.index(mask=mask{labels})",
        )


def refuse_others(h: Hierarchy, labels: Mapping[str, Any]) -> None:
    """Refuse keywords that are not strata with labels."""
    wanted, leaves = takes_labels(h), [s.name for s in h.leaves]
    accepted = [*wanted, *([h.rows.name] if h.rows not in h.leaves else []), *(leaves if len(leaves) > 1 else [])]
    for name in labels:
        if name in accepted:
            continue
        if name == BATCH and h.order and any(s.name == BATCH for s in h.order):
            raise HierarchyIndexError(f"labels for '{BATCH}', which has one element", remedy=f"leave {BATCH}= out")
        remedy = RANKS if is_group(labels[name]) else suggest(name.lower(), [*accepted, "mask", "offsets", "positions"])
        if name == "labels":
            remedy = "every stratum has its own keyword" + "".join(f", {s}=..." for s in wanted[:2])
        if name in leaves:
            remedy = f"leave it out: every unmasked token is {an(name)}"
        fibrations = ", ".join(f.name for f in h.fibrations)
        shape = " → ".join(s.name for s in reversed(h.order)) if h.shape.is_chain else f"{{{fibrations}}}"
        if not wanted and len(leaves) == 1 and not remedy and name not in MEANT:
            only = ", ".join(s.name for s in h.order)
            raise HierarchyIndexError(
                f"no stratum '{name}'",
                required=f"no labels: its only {'stratum is' if len(h.order) == 1 else 'strata are'} {only}",
                remedy=f"leave {name}= out",
            )
        raise HierarchyIndexError(
            f"unknown {'keyword' if name in MEANT else 'label'} '{name}'",
            required=f"labels for {', '.join(wanted) or 'no stratum'}"
            + (f", and masks for {', '.join(leaves)}" if len(leaves) > 1 else ""),
            found=f"the hierarchy is {shape}"
            + (f", with groups by {', '.join(s.name for s in h.groups)}" if h.groups else ""),
            remedy=MEANT.get(name, remedy),
        )
