"""What a SPEC of the command line may be: a file, a shipped name, or a trainer's config."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fibration.configs.options import TRAINERS, TrainerLoss, is_config
from fibration.errors import SpecError
from fibration.language.loading import load, shipped

_OPTION = re.compile(r"\w+(\.\w+)*")
_OVERRIDE = re.compile(r"\+{0,2}[A-Za-z_][\w.]*=")


@dataclass(frozen=True)
class Spec:
    """A SPEC. `overrides`: the words `KEY=VALUE` after a trainer's config."""

    name: str
    overrides: tuple[str, ...] = ()

    @property
    def trainer(self) -> str:
        """The name of the trainer whose config it is, or ""."""
        return TRAINERS[self.name.partition(":")[0]] if is_config(self.name) else ""

    def __str__(self) -> str:
        return " ".join([self.name, *self.overrides])

    def load(self) -> TrainerLoss:
        """The loss, and what a trainer does around it. Raises SpecError."""
        if self.trainer:
            from fibration.configs.files import load_config

            return load_config(self.name, self.overrides)
        return TrainerLoss(load(self.name))


def as_specs(words: Sequence[str]) -> list[Spec]:
    """The SPECs in words of a command line: `KEY=VALUE` after a config belongs to the config."""
    found: list[Spec] = []
    for word in words:
        if found and found[-1].trainer and _OVERRIDE.match(word):
            found[-1] = Spec(found[-1].name, (*found[-1].overrides, word))
        elif found and found[-1].trainer and _OPTION.fullmatch(word) and not _is_spec(word):
            raise SpecError(
                f"'{word}' after '{found[-1].name}'",
                required="KEY=VALUE, an option of this config, or a SPEC",
                remedy=f"write {word}=VALUE",
            )
        else:
            found.append(Spec(word))
    return found


def _is_spec(word: str) -> bool:
    return word in shipped() or Path(word).suffix in (".py", ".json", ".yaml", ".yml") or Path(word).exists()


def as_spec(words: str | Sequence[str]) -> Spec:
    """The one SPEC in words of a command line. Raises SpecError for several."""
    found = as_specs([words] if isinstance(words, str) else words)
    if len(found) != 1:
        names = ", ".join(f"'{spec.name}'" for spec in found)
        raise SpecError(
            f"{len(found)} SPECs: {names}",
            required="one SPEC; KEY=VALUE may come after a trainer's config, as trl:FILE",
            remedy="name one",
        )
    return found[0]
