"""The law `given_up`: a reason covers one fault of one law, and a law is given up only where it is broken.

A key with a subject, `"inward of trajectory"`, covers that subject. A key that is a law alone covers one fault:

- of a law about levels, every level that fails in the same way;
- of a law about formulas, one formula, or a weight and a condition that look ahead at the same statistic.

Two verdicts need a key with their subject: the rest of a law that is given up, and an undecided verdict without a known
fault beside other failures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from fibration.errors import listed, suggest
from fibration.language.report import LEFT, Verdict, example, key_of, names, parts
from fibration.laws import topic
from fibration.laws.catalogue import LAWS
from fibration.laws.law import Decision, Law, refuted
from fibration.laws.subject import Subject

# Laws with one verdict per formula. Each formula can have its own fault.
OF_FORMULAS = ("agreement", "mask_open", "causal", "kl_gradient")
# A reason for `first_order` covers `identity` too, on which it rests. The rest of both is the law `gradient`.
COVERS = {"first_order": ("first_order", "identity")}


def with_reasons(gives_up: Mapping[str, str], verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts. Each failing one gets the reason that covers it, or else a remedy with the key to type."""
    return [_with_reason(gives_up, v, verdicts) if v.fails else v for v in verdicts]


def _with_reason(gives_up: Mapping[str, str], v: Verdict, verdicts: Sequence[Verdict]) -> Verdict:
    is_rest = v.subject.startswith(LEFT)
    alike = [o for o in verdicts if o.law == v.law and o.fails and not o.subject.startswith(LEFT)]
    unnamed = [o for o in alike if _named_by(gives_up, o) is None]
    laws = (v.law, *(name for name, covered in COVERS.items() if v.law in covered))
    bare = None if is_rest else next((law for law in laws if law in gives_up), None)
    key = _named_by(gives_up, v) or (bare if bare != v.law or _is_one_fault(v, unnamed) else None)
    if key:
        return replace(v, given_up=gives_up[key])
    wanted = example(key_of(v.law, v.subject))
    if is_rest:
        return replace(v, remedy=f"{v.remedy}; or {wanted}, if the loss means this too")
    if len({o.subject for o in alike}) == 1:
        return v
    remedy = v.remedy.replace(example(v.law), wanted)
    if bare:
        subjects = listed(dict.fromkeys(o.subject for o in unnamed))
        remedy += "" if wanted in remedy else f"; or {wanted}"
        remedy = f"a reason under '{bare}' alone covers one fault, and {subjects} fail: name the others; or {remedy}"
    return replace(v, remedy=remedy)


def _named_by(gives_up: Mapping[str, str], v: Verdict) -> str | None:
    """The key that names the subject of a verdict."""
    return next((key for key in gives_up if parts(key)[1] and names(key, v.law, v.subject)), None)


def _is_one_fault(v: Verdict, unnamed: Sequence[Verdict]) -> bool:
    """Whether a reason for a law alone covers `v`. `unnamed` are all failures of the law that no key names."""
    subjects = {o.subject for o in unnamed}
    if len(subjects) == 1:
        return True
    if v.law in OF_FORMULAS:  # a weight and a condition that read one statistic
        kinds = set(map(topic.kind, subjects))
        return len(kinds) == len(subjects) and len({(o.status, o.fault) for o in unnamed}) == 1 and bool(v.fault)
    known = {_way(o) for o in unnamed if _way(o) or o.status == "refuted"}
    return known == {_way(v)} and (bool(_way(v)) or v.status == "refuted")


def _way(v: Verdict) -> str:
    """The way in which a law fails: its fault, or the verdict that this one follows from."""
    return v.fault or (" of ".join(v.cause) if v.cause else "")


# ---------------------------------------------------------------- the law


def decide_given_up(subject: Subject) -> Iterator[Decision]:
    """Refute every key that covers nothing, once all laws are decided."""
    verdicts, keys = subject.verdicts, subject.hierarchy.gives_up
    is_whole = not any(v.is_unfinished or (LAWS[v.law].needed_by_all and v.fails) for v in verdicts)
    for key in keys if is_whole else ():
        law, about = parts(key)
        asked = [v for v in verdicts if v.law == law]
        meant = [v for v in asked if (names(key, law, v.subject) if about else not v.subject.startswith(LEFT))]
        remove = f"remove '{key}' from gives_up"
        if not asked:
            yield _refused(key, "has nothing to speak of", "there is no such formula", remove)
        elif not meant:
            known = [key_of(law, v.subject) for v in asked]
            remedy = suggest(key, known) or f"write one of {', '.join(map(repr, known))}"
            yield _refused(key, "has no verdict", f"'{law}' is decided of {listed(v.subject for v in asked)}", remedy)
        elif all(v.status == "proved" for v in meant):
            yield _refused(key, "holds", "", remove)
        elif not about and all(v.status == "proved" or _named_by(keys, v) for v in meant):
            yield _refused(key, "covers nothing", "every subject that fails is named by a key of its own", remove)


def _refused(key: str, how: str, why: str, remedy: str) -> Decision:
    found = f"'{key}' {how}{why and ': '}{why}"
    return replace(refuted(f"law '{key}'", found, remedy), fault=how)


LAW = Law("given_up", "a law is given up only if it is broken", decide_given_up)
