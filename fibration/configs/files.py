"""Configs in YAML or JSON files, and `trl:FILE KEY=VALUE ...` on the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped,unused-ignore]

from fibration.configs.options import TRAINERS, TrainerLoss
from fibration.configs.yaml_loader import load_yaml
from fibration.errors import FibrationError, SpecError, shown
from fibration.files import read_bytes
from fibration.language.comparable import declared
from fibration.language.fixed import at_defaults

TELLING = {"trl": ("loss_type", "per_device_train_batch_size", "model_name_or_path"), "verl": ("actor_rollout_ref",)}
MAX_BYTES = 1_000_000


def load_config(spec: str, overrides: Iterable[str] = ()) -> TrainerLoss:
    """What the config of `trl:FILE` or `verl:FILE` trains. `overrides`: `KEY=VALUE`, as `algorithm.gamma=1`.

    Files are only read. Raises SpecError for a file that cannot be read, and for options that touch the loss and are
    not understood.
    """
    return loss_of(spec, config_of(spec, overrides))


def loss_of(spec: str, config: Mapping[str, Any]) -> TrainerLoss:
    """What the options of a config train; only the trainer of `spec` counts."""
    found: TrainerLoss = import_module(f"fibration.configs.{spec.partition(':')[0]}").hierarchy_of(config)
    return found


def deciding(spec: str, given: Mapping[str, Any], beside: Mapping[str, Any] | None) -> dict[str, list[str]]:
    """The options that decide each part of a config's loss, by the part. `given`: its options, from `options_in`.

    An option decides a part that changes when the option is left out, or when it has the value that it has in `beside`,
    the options of a second config of the same trainer.
    """
    own, found = parts_of(spec, given), dict[str, list[str]]()
    for key in given if beside is None else {**given, **beside}:
        changed = {k: v for k, v in given.items() if k != key}
        changed |= {key: beside[key]} if beside and key in beside else {}
        if changed == given:
            continue
        try:
            parts = parts_of(spec, changed)
        except FibrationError:  # the trainer needs it
            continue
        for name in {**own, **parts}:
            if own.get(name) != parts.get(name):
                found.setdefault(name, []).append(key)
    return found


def parts_of(spec: str, config: Mapping[str, Any]) -> dict[str, str]:
    """The parts of a config's loss as it declares them, at the config's numbers."""
    return declared(at_defaults(loss_of(spec, config).hierarchy))


def options_in(config: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """The options of a nested config by their dotted names."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        found |= options_in(value, f"{before}{key}.") if isinstance(value, Mapping) and value else {before + key: value}
    return found


def config_of(spec: str, overrides: Iterable[str] = ()) -> dict[str, Any]:
    """The options in the file of `trl:FILE` or `verl:FILE`, with `KEY=VALUE` put into them. Raises SpecError."""
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
    return config


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
