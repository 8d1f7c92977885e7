"""Numbers that rows have from when they were sampled: attributes, and log-probs of further policies.

They are tensors in the dictionary of a generation, which TRL shuffles and splits with its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from trl.models import prepare_deepspeed, prepare_fsdp
from trl.trainer.utils import add_fused_lm_head

from fibration.errors import TrainerError, an, listed, shown
from fibration.language.atoms import Attribute
from fibration.language.hierarchy import Hierarchy
from fibration.runtime.ranks.group import agreed, as_group
from fibration.trainers import intake
from fibration.trainers.trl.refusals import datasets, distinct, no_column

KNOWN = {intake.ROLLOUT: "what vLLM or a rollout function sampled with", intake.REFERENCE: "its reference model"}
ATTRIBUTE, POLICY = "fibration_attribute_", "fibration_policy_"  # and the name: keys in the dictionaries of TRL
FUNCTION = "rewards/"  # and the name of a reward function, as in TRL's log


class Numbers(Enum):
    """Sources of attributes that are not columns."""

    ENTROPY = "entropies of the policy that sampled"


#: In place of a column: the entropy of the distribution that each token was sampled from, in nats.
ENTROPY = Numbers.ENTROPY
OF_TOKENS = {"entropy": ENTROPY}  # sources by the names of attributes


class RowNumbers:
    """The sources of a hierarchy's attributes, and of the log-probs of its further policies.

    `attributes`: per attribute a column, `"rewards/NAME"` of a reward function, or `ENTROPY`. `policies`: per policy a
    model, or the field of a rollout function with one log-prob per token.
    """

    def __init__(
        self, hierarchy: Hierarchy, attributes: Mapping[str, Any] | None, policies: Mapping[str, Any] | None
    ) -> None:
        intake.check_policies(hierarchy, KNOWN, policies)
        self.hierarchy = hierarchy
        self.sources = intake.attribute_sources(hierarchy, attributes, OF_TOKENS)
        self.policies: dict[str, str | nn.Module] = dict(policies or {})
        for name, source in self.sources.items():
            self._check_kind(hierarchy.attributes[name], source)
        for name, given in self.policies.items():
            if not isinstance(given, (str, nn.Module)):
                raise TrainerError(
                    f"policies={{{name!r}: {shown(given)}}}",
                    required="a model, or the field of a rollout function that has a log-prob per token",
                    remedy="AutoModelForCausalLM.from_pretrained(NAME)",
                )

    def _check_kind(self, attribute: Attribute, source: Any) -> None:
        per_token = intake.is_per_token(self.hierarchy, attribute)
        of_row = isinstance(source, str) and source.startswith(FUNCTION)
        if not isinstance(source, (str, Numbers)) or (of_row if per_token else source is ENTROPY):
            has = "a number per completion" if of_row else "a number per token"
            raise TrainerError(
                f"attributes={{{attribute.name!r}: {shown(source)}}}, and '{attribute.name}' is an attribute of "
                f"{an(attribute.on.name)}",
                required="a field with a number per token, or ENTROPY (from fibration.trainers.trl)"
                if per_token
                else f"a column, or '{FUNCTION}NAME' of a reward function",
                found=has if isinstance(source, (str, Numbers)) else an(type(source).__name__),
                remedy=f"declare Attribute({attribute.name!r}, on={'trajectory' if of_row else 'token'})"
                if isinstance(source, (str, Numbers))
                else intake.attribute_option(attribute.name),
            )

    @property
    def columns(self) -> dict[str, str]:
        """The column of each attribute that has one."""
        found = {name: source for name, source in self.sources.items() if isinstance(source, str)}
        return {name: column for name, column in found.items() if not column.startswith(FUNCTION)}

    def check(self, given: Mapping[str, Any]) -> None:
        """Refuse errors that show before a model is loaded, in the arguments `given` to TRL's trainer."""
        for name, model in self.policies.items():
            if model is given.get("model"):
                raise TrainerError(
                    f"policies={{{name!r}: ...}} is the model that is trained",
                    required="a frozen model of its own",
                    remedy="load it once more: AutoModelForCausalLM.from_pretrained(NAME)",
                )
        if given.get("rollout_func") is not None:  # a rollout function may add fields to the rows
            return
        for name, model in self.policies.items():
            if isinstance(model, str):
                raise TrainerError(
                    f"policies={{{name!r}: {model!r}}} names a field of completions, and TRL's generation adds none",
                    required="a model; or a rollout_func whose result has this field, a log-prob per token",
                    remedy=f"policies={{{name!r}: AutoModelForCausalLM.from_pretrained({model!r})}}",
                )
        for name, column in self.columns.items():
            attribute = self.hierarchy.attributes[name]
            if intake.is_per_token(self.hierarchy, attribute):
                raise TrainerError(
                    f"attributes={{{name!r}: {column!r}}}, and '{name}' is an attribute of {an(attribute.on.name)}",
                    required="numbers of sampled tokens: ENTROPY (from fibration.trainers.trl), or a field of a "
                    "rollout_func. A line of the dataset does not know which tokens will be sampled",
                    remedy=f"declare Attribute({name!r}, on={self.hierarchy.rows}) for a number per line",
                )
            for of in ("train_dataset", "eval_dataset"):
                for where, dataset in datasets(of, given.get(of)):
                    self._check_column(attribute, column, where, dataset)

    def _check_column(self, attribute: Attribute, column: str, where: str, dataset: Any) -> None:
        known = getattr(dataset, "column_names", None)  # None for streams that were not read yet
        if known is not None and column not in known:
            raise no_column(
                f"the attribute '{attribute.name}'", column, known, intake.attribute_option(attribute.name), where
            )
        for value in distinct(dataset, column, intake.as_number):
            if intake.as_number(value) is None:
                raise intake.no_number(attribute, f"{where} has {shown(value)} in the column {column!r}", FIX)

    def check_functions(self, names: Sequence[str]) -> None:
        """Refuse names of reward functions that the trainer does not have."""
        for name, source in self.sources.items():
            if isinstance(source, str) and source.startswith(FUNCTION) and source.removeprefix(FUNCTION) not in names:
                raise TrainerError(
                    f"attributes={{{name!r}: {source!r}}}, and no reward function has this name",
                    required=listed(f"{FUNCTION}{known}" for known in names),
                    remedy="name one of them; a lambda has no name of its own, so define the function by def",
                )

    def prepare(self, trainer: Any) -> None:
        """Freeze the models of the policies, and place them as TRL does its reference model."""
        for name, model in self.policies.items():
            if isinstance(model, str):
                continue
            words, known = len(trainer._tokenizer), model.config.get_text_config().vocab_size  # type: ignore[union-attr,operator]
            if known < words:
                raise TrainerError(
                    f"the model of the policy '{name}' has a vocabulary of {known}, and the tokenizer has {words}",
                    required="a model that reads the same tokens",
                    remedy="take a model of the same family",
                )
            model.eval().requires_grad_(False)
            wide = trainer.args.cast_lm_head_to_fp32
            add_fused_lm_head(model, temperature=trainer.temperature, cast_lm_head_to_fp32=wide)
            self.policies[name] = _placed(trainer, name, model)

    # ------------------------------------------------------------ when rows are sampled

    def log_probs(self, score: Callable[[Any], Tensor]) -> dict[str, Tensor]:
        """Log-probs `[b, T]` of a generation by every further model. `score`: those of a model."""
        return {POLICY + name: score(model) for name, model in self.policies.items() if isinstance(model, nn.Module)}

    def of_rows(
        self, rows: Sequence[Mapping[str, Any]], output: Mapping[str, Any], entropies: Tensor | None, rewards: Tensor,
        functions: Sequence[str],
    ) -> dict[str, Tensor]:  # fmt: skip
        """The numbers of a generation that no model computes.

        `rows`: lines of the dataset with the fields of a rollout function. `output`: what TRL made of them. `rewards`:
        `[b, functions]`.
        """
        there = output["completion_mask"].bool()
        tools = output.get("tool_mask")
        unmasked = there if tools is None else there & tools.bool()
        used = unmasked.any(1).nonzero()[:, 0].tolist()
        found: dict[str, Tensor] = {}
        for name, source in self.sources.items():
            attribute, of = self.hierarchy.attributes[name], f"the attribute '{name}'"
            per_token, where, fix = intake.is_per_token(self.hierarchy, attribute), f"the column {source!r}", FIX
            if source is ENTROPY:
                assert entropies is not None
                tokens, where, fix = entropies, "TRL's entropies", "look for logits of the model that are not finite"
            elif source.startswith(FUNCTION):
                function = source.removeprefix(FUNCTION)
                given = rewards[:, functions.index(function)].tolist()
                where = f"the rewards of {function!r}"
                fix = "return a number for every completion, in place of None or NaN"
            else:
                given = column_of(rows, source, of, intake.attribute_option(name))
                if per_token:
                    tokens, where = of_tokens(given, there, source, of), f"{source!r}"
                    fix = "let the rollout function return a finite number for every token"
            found[ATTRIBUTE + name] = (
                intake.numbers_of_tokens(attribute, tokens, unmasked, where, fix)
                if per_token
                else intake.numbers_of_rows(attribute, given, used, where, fix)
            )
        for name, field in self.policies.items():
            if isinstance(field, str):
                what = f"the log-probs of '{name}'"
                tokens = of_tokens(column_of(rows, field, what, intake.policy_option(name)), there, field, what)
                found[POLICY + name] = tokens.to(output["completion_ids"].device)
        return found

    # ------------------------------------------------------------ when rows are trained on

    def attributes(
        self, joined: Callable[[str], Any], labels: Mapping[str, Sequence[Any]], mask: Tensor
    ) -> dict[str, Any]:
        """What `op.index(attributes=...)` takes. `joined`: a tensor of all slices of the window."""
        return intake.indexed(self.hierarchy, {name: joined(ATTRIBUTE + name) for name in self.sources}, labels, mask)

    def further(self, joined: Callable[[str], Any]) -> dict[str, Tensor]:
        """Log-probs of the further policies."""
        return {name: joined(POLICY + name) for name in further(self.hierarchy)}


FIX = "drop such rows by dataset.filter, or give them a number by dataset.map"


def further(hierarchy: Hierarchy) -> list[str]:
    """The policies that a hierarchy reads beside those that TRL has."""
    return [name for name in intake.passed(hierarchy) if name not in KNOWN]


def column_of(rows: Sequence[Mapping[str, Any]], column: str, what: str, fix: str) -> list[Any]:
    for row in rows:
        if column not in row:
            raise no_column(what, column, row, fix)
    return [row[column] for row in rows]


def of_tokens(given: Sequence[Any], there: Tensor, field: str, what: str) -> Tensor:
    """Lists of one number per token of a completion, as float64 `[b, T]`, 0 after their ends, NaN for no number.

    `there`: bool `[b, T]`, the tokens of each completion. A completion that is masked as a whole is not read.
    """
    found = torch.zeros(there.shape, dtype=torch.float64)
    for row, (values, tokens) in enumerate(zip(given, there.sum(1).tolist(), strict=True)):
        if not tokens:
            continue
        size = len(values) if isinstance(values, (list, tuple)) or getattr(values, "ndim", 0) == 1 else None
        if size != tokens:
            has = shown(values) if size is None else f"a list of {size}"
            raise TrainerError(
                f"completion {row} has {has} in {field!r}, the source of {what}",
                required=f"a list with one number for each of its {tokens} tokens",
                remedy="let the rollout function return a list per completion, as long as its completion_ids",
            )
        numbers = [torch.nan if (number := intake.as_number(value)) is None else number for value in values]
        found[row, :tokens] = torch.tensor(numbers, dtype=torch.float64)
    return found


def _placed(trainer: Any, name: str, model: Any) -> Any:
    if trainer.is_deepspeed_enabled:
        return prepare_deepspeed(model, trainer.accelerator)
    if trainer.is_fsdp_enabled:
        if trainer.accelerator.state.fsdp_plugin.fsdp_version == 2:  # version 1 sends weights from the first rank
            group = trainer._group
            with agreed(None if group is None else as_group(group), f"the model of the policy '{name}'"):
                _refuse_unloaded(name, model)
        return prepare_fsdp(model, trainer.accelerator)
    return trainer.accelerator.prepare_model(model, evaluation_mode=True)


def _refuse_unloaded(name: str, model: nn.Module) -> None:
    """Refuse a model without weights, as `from_pretrained` returns it on all ranks of a node but the first."""
    lacking = next((of for of, weight in model.named_parameters() if weight.is_meta), None)
    if lacking is not None:
        raise TrainerError(
            f"the model of the policy '{name}' has no weights here: '{lacking}' is on the device 'meta'",
            required="a model with its weights on every rank, which FSDP then shards",
            found="FSDP's cpu_ram_efficient_loading, with which from_pretrained loads weights on one rank of a node",
            remedy="load the model before GRPOConfig(...) is made, or set cpu_ram_efficient_loading=False in "
            "fsdp_config or in the file of accelerate launch",
        )
