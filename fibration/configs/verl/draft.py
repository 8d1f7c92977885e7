"""The loss of a config while it is read: its parts, the laws that it gives up, and what verl does around it."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fibration.configs.findings import NOTE, Finding, Severity
from fibration.configs.options import Options
from fibration.configs.parts import bounded
from fibration.language.atoms import Parameter, Stratum
from fibration.language.decompositions import Decomposition, ratio_deviation
from fibration.language.expressions import Expression
from fibration.language.gates import Gate
from fibration.language.kernels import Fibration

SCORE = "a score estimator: its value is not the objective"


@dataclass
class Draft:
    """What is known of the loss.

    - `is_score`: the policy loss is `w·A·log π`. `condition`: tokens that the policy loss drops.
    - `mean`: the `loss_agg_mode` that the policy loss has whatever the option says, and why.
    - `kept`: what every token of the response mask meets after `rollout_rs`; `by_token`: it drops single tokens.
    - `weighs_rows`: a row has the geometric mean of the weights of its tokens.
    """

    options: Options
    gates: dict[Stratum, Gate] = field(default_factory=dict)
    decomposition: Decomposition = field(default_factory=ratio_deviation)
    fibrations: tuple[Fibration, ...] = ()
    is_score: bool = False
    condition: Expression | None = None
    mean: str = ""
    kept: tuple[Expression, ...] = ()
    by_token: bool = False
    weighs_rows: bool = False
    penalties: dict[str, Expression] = field(default_factory=dict)
    gives_up: dict[str, str] = field(default_factory=dict)
    said: list[Finding] = field(default_factory=list)
    names: set[str] = field(default_factory=set)

    @property
    def mask(self) -> Expression | None:
        """The conditions of `kept` together; None where `rollout_rs` drops nothing."""
        return together(self.kept) if self.kept else None

    def parameter(
        self,
        name: str,
        value: float,
        lower: float | None = 0.0,
        upper: float | None = None,
        otherwise: str = "",
    ) -> Parameter:
        """A parameter whose default is a number of the config. It is called `otherwise` if `name` is taken."""
        free = otherwise if name in self.names and otherwise else name
        self.names.add(free)
        return bounded(free, value, lower, upper)

    def say(self, sentence: str, severity: Severity = NOTE, change: str = "", first: bool = False) -> None:
        """Says what verl does around the loss, or grades a reason of `gives_up`."""
        self.said.insert(0 if first else len(self.said), Finding(severity, sentence, change))

    def default(self, name: str) -> str:
        """` (the default)` for an option that the config does not name."""
        return "" if self.options.is_given(name) else " (the default)"

    def known(self, name: str) -> str:
        """`actor_rollout_ref.actor.clip_ratio=0.2`: an option and its value, as on verl's command line."""
        return f"{name}={written(self.options[name])}"

    def give_up(self, law: str, option: str, why: str) -> None:
        """Gives a law up: `loss_mode=cispo: why`."""
        self.gives_up[law] = f"{option.rpartition('.')[2]}={written(self.options[option])}: {why}"


def together(conditions: Sequence[Expression]) -> Expression:
    return functools.reduce(operator.and_, conditions)


def written(value: Any) -> str:
    """A value as on verl's command line: `null`, `true`, `0.2`."""
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)
