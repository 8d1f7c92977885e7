"""The loss of a config while it is read: its parts, the laws that it gives up, and what verl does around it."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from typing import Any

from fibration.configs.findings import ERROR, NOTE, Severity
from fibration.configs.options import Options
from fibration.configs.parts import bounded, together
from fibration.configs.weights import EngineWeight
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
    - `reserved`: names of parameters that the policy loss needs.
    - `engine`: what verl makes of trainer/engine.
    - `closed`: why `rollout_rs` drops tokens of which engine and trainer agree, or "".
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
    closed: str = ""
    penalties: dict[str, Expression] = field(default_factory=dict)
    gives_up: dict[str, str] = field(default_factory=dict)
    engine: list[EngineWeight] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    reserved: frozenset[str] = frozenset()

    @property
    def is_legacy(self) -> bool:
        """Whether one of verl's older trainers runs it."""
        is_async = any(name.startswith("async_training.") for name in self.options.given)
        return not self.options.flag("trainer.use_v1") or is_async

    @property
    def mask(self) -> Expression | None:
        """The conditions of `kept` together; None where `rollout_rs` drops nothing."""
        return together(self.kept) if self.kept else None

    def parameter(
        self, name: str, value: float, lower: float | None = 0.0, upper: float | None = None, otherwise: str = ""
    ) -> Parameter:
        """A parameter whose default is a number of the config.

        It is called `otherwise` if `name` is taken or reserved, and has a number at its end if that is taken too.
        """
        taken = self.names | self.reserved if otherwise else self.names
        names = itertools.chain((name, otherwise or name), (f"{otherwise or name}_{n}" for n in itertools.count(2)))
        free = next(each for each in names if each not in taken)
        self.names.add(free)
        return bounded(free, value, lower, upper)

    def say(self, sentence: str, severity: Severity = NOTE, change: str = "") -> None:
        """Says what verl does around the loss, or grades a reason of `gives_up`."""
        self.options.find(sentence, severity, change)

    def default(self, name: str) -> str:
        """` (the default)` for an option that the config does not name."""
        return "" if self.options.is_given(name) else " (the default)"

    def known(self, name: str) -> str:
        """`actor_rollout_ref.actor.clip_ratio=0.2`: an option and its value, as on verl's command line."""
        return f"{name}={written(self.options[name])}"

    def give_up(self, law: str, option: str, why: str) -> None:
        """Gives a law up, as verl's own choice: `loss_mode=cispo: why`."""
        self.gives_up[law] = self.reason(option, why)

    def reason(self, option: str, why: str) -> str:
        return f"{option.rpartition('.')[2]}={written(self.options[option])}: {why}"

    def blame(self, option: str, why: str, severity: Severity, change: str) -> str:
        """Says `clip_ratio_low=1.5: why`, and returns it."""
        self.say(self.reason(option, why), severity, change)
        return self.reason(option, why)

    def blame_outside(self, option: str) -> str:
        """Says that a condition does not hold where engine and trainer agree, and returns it."""
        why = "1 does not lie inside, so that tokens of which engine and trainer agree are dropped"
        return self.blame(option, why, ERROR, f"{option}=0.5_2.0")


def written(value: Any) -> str:
    """A value as on verl's command line: `null`, `true`, `0.2`."""
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)
