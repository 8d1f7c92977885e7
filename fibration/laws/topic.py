"""The subjects of verdicts, such as kernels, gates and weights. Laws compare them, and parse none."""

from __future__ import annotations

from fibration.language.atoms import Stratum
from fibration.language.expressions import Expression
from fibration.language.strata import Fibration


class Topic(str):
    """The subject of a verdict: the text that users read, with its kind, and what it is about.

    A verdict that is read from the cache has the plain text as its subject.
    """

    kind: str
    about: tuple[object, ...]

    def __new__(cls, text: str, kind: str = "", about: tuple[object, ...] = ()) -> Topic:
        made = super().__new__(cls, text)
        made.kind, made.about = kind, about
        return made


def is_about(subject: str, thing: object) -> bool:
    """Whether the subject of a verdict is this thing, alone or together with others."""
    return isinstance(subject, Topic) and thing in subject.about


def kind(subject: str) -> str:
    """The kind of a subject; '' of the whole hierarchy."""
    return subject.kind if isinstance(subject, Topic) else ""


def kernel(*cover: Fibration) -> Topic:
    """A kernel, or the kernels that reflect together."""
    if len(cover) == 1:
        return Topic(f"kernel {cover[0].name}", "kernel", cover)
    return Topic(f"kernels {', '.join(f.source.name for f in cover)} → {cover[0].target}", "kernel", cover)


def gate(stratum: Stratum) -> Topic:
    return Topic(f"gate on {stratum}", "gate", (stratum,))


def residual(stratum: Stratum) -> Topic:
    return Topic(f"residual on {stratum}", "residual", (stratum,))


def weight(formula: Expression, whose: str = "") -> Topic:
    return Topic(f"weight {formula}{whose}", "weight", (formula,))


def condition(formula: Expression, whose: str = "") -> Topic:
    return Topic(f"condition {formula}{whose}", "condition", (formula,))


def penalty(name: str) -> Topic:
    return Topic(f"penalty '{name}'", "penalty", (name,))
