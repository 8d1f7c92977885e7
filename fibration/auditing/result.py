"""The result of an audit."""

from __future__ import annotations

from dataclasses import dataclass

from fibration.auditing.finding import Finding
from fibration.auditing.function import Function
from fibration.auditing.identify import Likeness

PARTS = 3  # in which a function may differ from a loss that is named as the nearest


@dataclass(frozen=True)
class Result:
    """What was found about a function.

    `asked`: the name of the loss that it should be; '' if none was named. `losses`: the declared losses that it is, or
    the nearest one alone. `findings`: its properties. `differences`: those in which it differs from the nearest loss,
    with what holds for that one. `untraced`: why the function has no program, so that all is seen on batches; ''
    if it has one.
    """

    function: Function
    asked: str
    losses: tuple[Likeness, ...]
    findings: tuple[Finding, ...]
    differences: tuple[tuple[Finding, Finding], ...]
    untraced: str = ""

    @property
    def name(self) -> str:
        return self.function.name

    @property
    def identified(self) -> bool:
        """Whether it has the gradient of a declared loss."""
        return bool(self.losses) and self.losses[0].has_same_gradient

    @property
    def failures(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.status == "fails")

    @property
    def notes(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.status == "note")

    @property
    def nearest(self) -> Likeness | None:
        """The loss that the function is or should be; or the nearest one, if few of its parts differ."""
        if not self.losses or self.asked or self.losses[0].has_same_direction:
            return self.losses[0] if self.losses else None
        is_near = not self.losses[0].is_far and self.losses[0].is_usual and len(self.differences) <= PARTS
        return self.losses[0] if is_near else None

    @property
    def ok(self) -> bool:
        """Whether nothing fails, and the function is the loss that it should be, if one was named."""
        return not self.failures and (not self.asked or self.identified)
