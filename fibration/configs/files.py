"""Configs in YAML or JSON files, and `trl:FILE KEY=VALUE ...` on the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped,unused-ignore]

from fibration.configs.options import TRAINERS, TrainerLoss
from fibration.configs.yaml_loader import load_yaml
from fibration.errors import SpecError, shown
from fibration.files import read_bytes

TELLING = {"trl": ("loss_type", "per_device_train_batch_size", "model_name_or_path"), "verl": ("actor_rollout_ref",)}
MAX_BYTES = 1_000_000


def load_config(spec: str, overrides: Iterable[str] = ()) -> TrainerLoss:
    """What the config of `trl:FILE` or `verl:FILE` trains. `overrides`: `KEY=VALUE`, as `algorithm.gamma=1`.

    Files are only read. Raises SpecError for a file that cannot be read, and for options that touch the loss and are
    not understood.
    """
    trainer, _, file = spec.partition(":")
    config = read(Path(file), spec)
    for other, keys in TELLING.items():
        if other != trainer and (key := next((key for key in keys if key in config), "")):
            raise SpecError(
                f"'{spec}' is no config of {TRAINERS[trainer]}",
                required=f"a config of {TRAINERS[trainer]}",
                found=f"'{key}', an option of {TRAINERS[other]}",
                remedy=f"write {other}:{file}",
            )
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            raise SpecError(f"'{override}' after '{spec}'", required="KEY=VALUE", remedy="write beta=0.04")
        _put(config, key.lstrip("+").split("."), _value(text, override))
    loss: TrainerLoss = import_module(f"fibration.configs.{trainer}").hierarchy_of(config)
    return loss


def read(path: Path, spec: str) -> dict[str, Any]:
    """The mapping in a YAML or JSON file."""
    what = f"cannot read '{spec}'"
    try:
        found = load_yaml(read_bytes(path, MAX_BYTES).decode("utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        remedy = "name the file with the trainer's config after the colon"
        raise SpecError(what, required="a YAML or JSON file in UTF-8", found=str(error), remedy=remedy) from error
    except yaml.YAMLError as error:
        raise SpecError(what, required="YAML or JSON", found=" ".join(str(error).split())) from error
    if not isinstance(found, Mapping):
        kind = "nothing" if found is None else f"a {type(found).__name__}"
        raise SpecError(what, required="a mapping of options", found=kind)
    return dict(found)


def _value(text: str, override: str) -> Any:
    try:
        return load_yaml(text)
    except yaml.YAMLError as error:
        found = " ".join(str(error).split())
        raise SpecError(
            f"cannot read {shown(override)}", required="KEY=VALUE, with a value in YAML", found=found
        ) from error


def _put(config: dict[str, Any], path: list[str], value: Any) -> None:
    """Sets a nested option. A value on the way that is no mapping is replaced."""
    *way, last = path
    for key in way:
        below = config.get(key)
        config[key] = config = dict(below) if isinstance(below, Mapping) else {}
    config[last] = value
