"""The options of verl 0.9.1: the defaults of those that touch the loss, and which others do not touch it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from fibration.configs.options import READERS, Option, Options, Table, Unfit, flattened, read_table
from fibration.errors import SpecError, shown

ACTOR = "actor_rollout_ref.actor."
POLICY_LOSS = f"{ACTOR}policy_loss."
ALGORITHM = "algorithm."
CORRECTION = f"{ALGORITHM}rollout_correction."
OWN_CORRECTION = f"{POLICY_LOSS}rollout_correction."
ROLLOUT = "actor_rollout_ref.rollout."
MODEL = "actor_rollout_ref.model."
KINDS = {"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
KL_NAMES = (*KINDS, *(f"{name}+" for name in KINDS))


def _kl(value: Any, option: Option) -> str:
    """`k1`, `abs`, `k2`, `k3`, or one of these with a `+`, for verl's name of it."""
    if value in ("full", "full+"):
        raise Unfit("another estimator: verl has no code for 'full'")
    name = str(READERS["choice"](value, replace(option, of=KL_NAMES)))
    return KINDS[name.rstrip("+")] + "+" * name.endswith("+")


TABLE = Table(read_table("verl"), {"kl": _kl})
# `null` in the place of a whole subtree leaves it at its defaults.
SUBTREES = (f"{ALGORITHM}rollout_correction", f"{ALGORITHM}filter_groups")
_DATACLASSES = ("verl.trainer.config.RolloutCorrectionConfig", "verl.trainer.config.algorithm.RolloutCorrectionConfig")
# Files of verl whose values are the defaults above, as Hydra's `defaults:` names them.
_OWN_FILES = re.compile(
    r"_self_|legacy_reward_impl|rollout_correction|ppo(_\w+)?_trainer|((dp|megatron|torchtitan|veomni)_)?actor|"
    r"\$\{.*\}_actor"
)
_OWN_GROUPS = ("actor", "algorithm")


def options_of(config: Any) -> Options:
    """The options of a config: a mapping, nested or with dotted names, or an OmegaConf `DictConfig`.

    Raises SpecError for an option that is not known, for an interpolation in an option that touches the loss, and for
    a file in Hydra's `defaults` that is not verl's own.
    """
    made = None
    if type(config).__module__.partition(".")[0] == "omegaconf":
        from omegaconf import OmegaConf

        made, config = config, OmegaConf.to_container(config, resolve=False)
    if not isinstance(config, Mapping):
        raise SpecError(
            "verl: this is no config",
            required="a mapping of options, or an OmegaConf DictConfig",
            found=shown(config),
            remedy='write hierarchy_of({"algorithm": {"adv_estimator": "grpo"}})',
        )
    given = flattened(config)
    _check_files(given.pop("defaults", None))
    defaults = _own_correction(config, given)
    for name in SUBTREES:
        if name in given and given[name] is None:
            del given[name]
    for name in [n for n, value in given.items() if isinstance(value, str) and "${" in value]:
        if name not in TABLE.options and not (TABLE.find(name) or Option()).says:
            continue
        if made is None:
            raise SpecError(
                f"verl: the option '{name}'",
                required="a value",
                found=f"the interpolation {given[name]}",
                remedy="write its value, or compose the config first: python -m verl.trainer.main_ppo ... --cfg job",
            )
        given[name] = OmegaConf.select(made, name)
    return Options(TABLE, given, defaults)


def _own_correction(config: Mapping[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The defaults of `policy_loss.rollout_correction` that are not those of verl's dataclass.

    verl makes the dataclass if the mapping is absent, or names it in `_target_`. Any other mapping stays one, of which
    its policy loss reads what is there, and `rollout_is` is null where it is not.
    """
    name = OWN_CORRECTION[:-1]
    target = given.get(f"{OWN_CORRECTION}_target_")
    if target is not None and str(target) not in _DATACLASSES:
        raise SpecError(f"verl: the option '{OWN_CORRECTION}_target_'", required=_DATACLASSES[0], found=shown(target))
    if name in given and given.pop(name) is None and given.get(f"{POLICY_LOSS}loss_mode") == "bypass_mode":
        raise SpecError(
            f"verl: the option '{name}'",
            required="a mapping, or nothing, with loss_mode=bypass_mode: verl raises an error",
            found="null",
            remedy=f"leave {name} out",
        )
    return {} if target is not None or not _has(config, name) else {f"{OWN_CORRECTION}rollout_is": None}


def _has(config: Mapping[Any, Any], name: str) -> bool:
    """Whether a config has a mapping of this name, perhaps an empty one. Dotted names count."""
    return any(
        str(key) == name
        or str(key).startswith(f"{name}.")
        or (name.startswith(f"{key}.") and isinstance(below, Mapping) and _has(below, name.removeprefix(f"{key}.")))
        for key, below in config.items()
    )


def _check_files(files: Any) -> None:
    """Refuses files that Hydra would read beside this one, unless they have verl's own defaults."""
    for entry in files if isinstance(files, list) else ():
        pairs: Iterable[tuple[Any, Any]] = entry.items() if isinstance(entry, Mapping) else [("", entry)]
        for group, file in pairs:
            touches = not group or str(group).partition("@")[0] in _OWN_GROUPS
            if touches and not _OWN_FILES.fullmatch(str(file)):
                raise SpecError(
                    f"verl: the file '{file}' in 'defaults' is not read",
                    required="one file with all options, or verl's own files in 'defaults'",
                    remedy="compose the config first: python -m verl.trainer.main_ppo ... --cfg job > run.yaml",
                )
