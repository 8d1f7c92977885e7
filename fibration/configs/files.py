"""Configs in YAML, JSON or TOML files or in shell scripts, and `trl:FILE KEY=VALUE ...` on the command line."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped,unused-ignore]

from fibration.configs.options import TRAINERS, TrainerLoss
from fibration.configs.yaml_loader import load_yaml
from fibration.errors import FibrationError, SpecError, shown
from fibration.files import read_bytes
from fibration.language.fixed import at_defaults
from fibration.language.roles import declared

TELLING = {
    "trl": ("loss_type", "per_device_train_batch_size", "model_name_or_path"),
    "verl": ("actor_rollout_ref",),
    "openrlhf": ("algo",),
    "prime": ("orchestrator",),
}
MODULES = {"openrlhf": "openrlhf.cli.train_ppo_ray"}  # that take options on a command line
MAX_BYTES = 1_000_000


def load_config(spec: str, overrides: Iterable[str] = ()) -> TrainerLoss:
    """What the config of `TRAINER:FILE` trains. `overrides`: `KEY=VALUE`, as `algorithm.gamma=1`.

    Files are only read. Raises SpecError for a file that cannot be read, and for options that touch the loss and are
    not understood.
    """
    return loss_of(spec, config_of(spec, overrides))


def loss_of(spec: str, config: Mapping[str, Any]) -> TrainerLoss:
    """What the options of a config train; only the trainer of `spec` counts."""
    found: TrainerLoss = import_module(f"fibration.configs.{spec.partition(':')[0]}").hierarchy_of(config)
    return found


def deciding(spec: str, given: Mapping[str, Any], beside: Mapping[str, Any] | None) -> dict[str, list[str]]:
    """The options that decide each part of a config's loss, by the part. `given`: its options, by their dotted names.

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


def config_of(spec: str, overrides: Iterable[str] = ()) -> dict[str, Any]:
    """The options in the file of `TRAINER:FILE`, with `KEY=VALUE` put into them. Raises SpecError."""
    trainer, _, file = spec.partition(":")
    config = read(Path(file), spec)
    found = {str(key).partition(".")[0] for key in config}
    for other, keys in TELLING.items():
        if other != trainer and (key := next((key for key in keys if key in found), "")):
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
    """The mapping in a YAML, JSON or TOML file, or the options of a command in a shell script."""
    what = f"cannot read '{spec}'"
    try:
        text = read_bytes(path, MAX_BYTES).decode("utf-8-sig")
        if path.suffix == ".sh" and (module := MODULES.get(spec.partition(":")[0])):
            return command_options(text, module)
        found = tomllib.loads(text) if path.suffix == ".toml" else load_yaml(text)
    except (OSError, UnicodeDecodeError) as error:
        remedy = "name the file with the trainer's config after the colon"
        raise SpecError(what, required="a YAML, JSON or TOML file in UTF-8", found=str(error), remedy=remedy) from error
    except (yaml.YAMLError, tomllib.TOMLDecodeError) as error:
        raise SpecError(what, required="YAML, JSON or TOML", found=" ".join(str(error).split())) from error
    if not isinstance(found, Mapping):
        kind = "nothing" if found is None else f"a {type(found).__name__}"
        raise SpecError(what, required="a mapping of options", found=kind)
    return dict(found)


def command_options(script: str, module: str) -> dict[str, Any]:
    """The options `--KEY VALUE ...` of the command in a shell script that runs `module`. Raises SpecError.

    A key without a value is true, and one with several has a list. Variables of the shell stay as they are written.
    """
    lines = [line for line in script.replace("\\\n", " ").splitlines() if not line.lstrip().startswith("#")]
    command = next((line.partition(module)[2] for line in lines if module in line), None)
    required = f"one command {module} --KEY VALUE ..., with its options written out"
    if command is None:
        raise SpecError("cannot read the script", required=required, found=f"no line with {module}")
    found: dict[str, list[str]] = {}
    try:
        words = shlex.split(command, comments=True)
    except ValueError as error:
        raise SpecError("cannot read the script", required=required, found=str(error)) from error
    for word in words:
        if word.startswith((">", "&", "|", ";", "2>")):
            break
        if "[@]" in word or (not found and not word.startswith("--")):
            raise SpecError("cannot read the script", required=required, found=shown(word))
        if word.startswith("--"):
            key, equals, value = word[2:].partition("=")
            found[key] = [value] if equals else []
        else:
            found[key].append(word)
    return {key: texts[0] if len(texts) == 1 else texts or True for key, texts in found.items()}


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
