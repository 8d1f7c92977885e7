"""Options that the trainer must refuse, with the words that each refusal must contain."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from cases import FAR
from recorded_training import dataset, model


@dataclass(frozen=True)
class Refused:
    words: tuple[str, ...]
    config: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    without: str = ""  # a column that the data lack
    rows: Callable[[Any], Any] = lambda data: data  # what is made of the data
    streamed: bool = False  # data that are known by and by
    trains: bool = False  # only training shows it
    how: Callable[[Any], Any] = lambda config: nullcontext()  # makes it so, of the configuration


def losses() -> dict[str, Refused]:
    kinds = ("grpo", "bnpo", "dr_grpo", "cispo", "sapo", "vespo", "luspo")
    own = {kind: f"hierarchy='{kind}'" for kind in ("grpo", "dr_grpo", "cispo", "sapo")}
    return {
        f"loss_type={kind}": Refused(
            ("loss_type", kind, "dapo", "leave loss_type out", own.get(kind, "")), {"loss_type": kind}
        )
        for kind in kinds
    }


def where_code(value: Any) -> Callable[[Any], Any]:
    """The column of domains with another value where it says `code`."""
    return lambda data: data.map(lambda row: {"domain": value if row["domain"] == "code" else row["domain"]})


def numbers(data: Any) -> Any:
    return data.map(lambda row: {"domain": float("nan") if row["line"] % 3 else 1.0})


def lists(data: Any) -> Any:
    return data.map(lambda row: {"domain": [row["domain"]] * 8})  # as long as a completion


def evaluated(**data: Any) -> dict[str, Any]:
    return {"eval_dataset": data}


def levels(value: Any) -> Callable[[Any], Any]:
    """The column of levels with another value where the domain is `code`."""
    return lambda data: data.map(lambda row: {"level": value if row["domain"] == "code" else row["level"]})


def of_code(data: Any) -> Any:
    """Parts that differ within a domain."""
    return data.map(lambda row: {"part": float(row["line"])})


def too_short(prompts: Any, trainer: Any) -> dict[str, Any]:
    """A rollout function whose field has a number for each completion, in place of one for each of its tokens."""
    ids = [[3, 4, 5, 1] for _ in prompts]
    return {"prompt_ids": [[3]] * len(prompts), "completion_ids": ids, "logprobs": None, "taught": [[-1.0]] * len(ids)}


GRPO: dict[str, Any] = {"hierarchy": "grpo", "labels": None, "parameters": None}
HERE = Path(__file__).parent / "spec.py"
MEASURED: dict[str, Any] = {"hierarchy": f"{HERE}:measured", "attributes": {"difficulty": "level", "part": "part"}}
OPD: dict[str, Any] = {**GRPO, "hierarchy": "opd"}


def numbered(**attributes: Any) -> dict[str, Any]:
    return {**MEASURED, "attributes": {**MEASURED["attributes"], **attributes}}


PIECES = "ranks that have pieces of the same rows"
WITHOUT = {**FAR, "C_domain": {"algebra": 0.01, "logic": 2.0, "maps": 0.1, "cod": 0.1}}  # a slip in code
REFUSED = {
    **losses(),
    "importance_sampling_level": Refused(
        ("importance_sampling_level", "sequence"), {"importance_sampling_level": "sequence"}
    ),
    "delta": Refused(("delta", "2.0"), {"delta": 2.0}),
    "top_entropy_quantile": Refused(
        ("top_entropy_quantile=0.5", "entropy_mask", "{'level': 0.5}"), {"top_entropy_quantile": 0.5}
    ),
    "off_policy_mask_threshold": Refused(("off_policy_mask_threshold",), {"off_policy_mask_threshold": 0.5}),
    "use_bias_correction_kl": Refused(
        ("TRL's default", "GRPOConfig(beta=0.1, use_bias_correction_kl=False)"), {"beta": 0.1}
    ),
    "epsilon": Refused(
        ("epsilon=0.3 has no effect", "parameters={'epsilon_low': 0.3, 'epsilon_high': 0.3}"),
        {"epsilon": 0.3},
        trainer=GRPO,
    ),
    "epsilon_high": Refused(
        ("epsilon_high=0.28 has no effect", "parameters={'epsilon_high': 0.28}"), {"epsilon_high": 0.28}, trainer=GRPO
    ),
    "epsilon, and epsilon_high": Refused(
        ("epsilon=0.3 has no effect", "parameters={'epsilon_low': 0.3, 'epsilon_high': 0.28}"),
        {"epsilon": 0.3, "epsilon_high": 0.28},
        trainer=GRPO,
    ),
    "epsilon of several levels": Refused(("epsilon=0.3", "parameters of 'soft': ", "C_domain"), {"epsilon": 0.3}),
    "a generation inside a window": Refused(
        ("gradient_accumulation_steps", "steps_per_generation", "2", "3"),
        {"gradient_accumulation_steps": 2, "num_iterations": 1},
    ),
    "a window of two generations": Refused(
        ("gradient_accumulation_steps", "steps_per_generation", "6", "3"),
        {"gradient_accumulation_steps": 6, "num_iterations": 1},
    ),
    "dropout": Refused(
        (
            "attention_dropout=0.1",
            "'soft' couples all rows of a domain",
            "from_pretrained(NAME, attention_dropout=0.0)",
            "disable_dropout does not reach",
        ),
        {"disable_dropout": True},
        model={"attention_dropout": 0.1},
    ),
    "dropout, and log-probs that nobody kept": Refused(
        ("attention_dropout=0.1", "'near_old' couples all rows of a domain"),
        {"num_iterations": 1},
        trainer={"hierarchy": f"{HERE}:near_old"},
        model={"attention_dropout": 0.1},
    ),
    "noise in embeddings": Refused(("neftune_noise_alpha", "5"), {"neftune_noise_alpha": 5.0}),
    "what sampled, of its own generation": Refused(
        ("of_three", "log_prob(rollout)", "use_vllm=True"), trainer={"hierarchy": f"{HERE}:of_three"}
    ),
    "what sampled, corrected for twice": Refused(
        ("log_prob(rollout)", "twice", "vllm_importance_sampling_correction=False"),
        {"use_vllm": True},
        trainer={"hierarchy": f"{HERE}:of_three"},
    ),
    "a policy that it has not": Refused(
        ("log_prob(teacher)", "'teacher'", "rollout", "reference"),
        trainer={"hierarchy": f"{HERE.parents[2] / 'three_policy_losses.py'}:of_teacher"},
    ),
    "a divergence of its own beside the hierarchy's": Refused(
        ("log_prob(reference)", "beta=0.1", "two penalties", "leave beta out"),
        {"beta": 0.1, "use_bias_correction_kl": False},
        trainer={"hierarchy": f"{HERE}:of_rewards"},
    ),
    "a reference model without a name": Refused(
        ("'of_rewards' reads log_prob(reference)", "LlamaForCausalLM", "name_or_path=''", 'save_pretrained("start")'),
        trainer={"hierarchy": f"{HERE}:of_rewards"},
    ),
    "a divergence from a model without a name": Refused(
        ("beta=0.1", "LlamaForCausalLM", "name_or_path=''", 'model.config.name_or_path = "start"'),
        {"beta": 0.1, "use_bias_correction_kl": False},
    ),
    "advantages that it would scale": Refused(
        ("scale_rewards='none' has no effect", "'of_rewards'", "replace(advantages=None)"),
        {"scale_rewards": "none"},
        trainer={"hierarchy": f"{HERE}:of_rewards"},
    ),
    "rewards of tokens": Refused(
        ("'to_go' adds up the rewards of tokens", "one reward per completion", "replace(advantages=None)"),
        trainer={"hierarchy": f"{HERE}:to_go"},
    ),
    "elements without labels together": Refused(
        ("together='turn'", "prompt_group and domain", "leave together out"), trainer={"together": "turn"}
    ),
    "labels for completions": Refused(
        ("trajectory", "line"), trainer={"labels": {"domain": "domain", "trajectory": "line"}}
    ),
    "a column that lacks": Refused(("train_dataset", "domain"), without="domain"),
    "a column that lacks, in a stream": Refused(("domain",), without="domain", streamed=True, trains=True),
    "a window that is none": Refused(("window", "batch", "step", "generation"), trainer={"window": "batch"}),
    "metrics that are none": Refused(("metrics", "many", "levels", "all"), trainer={"metrics": "many"}),
    "a stratum without labels": Refused(("domain", "labels"), trainer={"labels": {}}),
    "an earlier release": Refused(
        ("loss_is_scaled_for_ga",), how=lambda _: patch("trl.GRPOTrainer.loss_is_scaled_for_ga", False)
    ),
    "a fused loss": Refused(
        ("use_liger_loss",), how=lambda config: patch.object(config, "use_liger_loss", True, create=True)
    ),
    "a fused loss of an earlier release": Refused(
        ("use_liger_kernel",),
        {"use_liger_kernel": True},
        how=lambda _: patch("trl.GRPOTrainer.compute_liger_loss", None, create=True),
    ),
    **{
        f"{kind} parallelism": Refused(
            (f"{kind}_size=2", ranks, f"{kind}_size=1 in parallelism_config", "accelerate launch"),
            how=lambda _, name=f"trl.GRPOTrainer.get_{kind}_size": patch(name, lambda self: 2),
        )
        for kind, ranks in {"tp": "ranks that have the same rows", "cp": PIECES, "sp": PIECES}.items()
    },
    "a row without a label": Refused(("train_dataset", "'domain'", "None", "filter"), rows=where_code(None)),
    "a label that is no number": Refused(("train_dataset", "'domain'", "nan", "map"), rows=numbers),
    "labels per token": Refused(("train_dataset", "'domain'", "['algebra'"), rows=lists),
    **{
        f"{kind}, in a stream": Refused(("'domain'", word, "filter"), rows=rows, streamed=True, trains=True)
        for kind, word, rows in (
            ("a row without a label", "None", where_code(None)),
            ("a label that is no number", "nan", numbers),
            ("labels per token", "['", lists),
        )
    },
    "a label without a value": Refused(
        ("C_domain", "no value for the domain 'code'", "train_dataset"), trainer={"parameters": WITHOUT}
    ),
    "an evaluation without labels": Refused(
        ("eval_dataset['b']", "domain"), trainer=evaluated(a=dataset(8), b=dataset(8).remove_columns("domain"))
    ),
    "an evaluation with a row without a label": Refused(
        ("eval_dataset['b']", "'domain'", "None"), trainer=evaluated(a=dataset(8), b=where_code(None)(dataset(8)))
    ),
    "a prompt without labels": Refused(
        ("prompt_group", "{'prompt': BY_PROMPT}", "fibration.trainers.trl"),
        trainer={"hierarchy": f"{HERE}:of_prompts", "parameters": {}, "labels": {}},
    ),
    "a parameter that is none": Refused(("C_domian", "C_domain"), trainer={"parameters": {"C_domian": 0.1}}),
    "an attribute without a source": Refused(
        ("no numbers for the attribute 'part' of a domain", "attributes={'part': COLUMN}"),
        trainer={**MEASURED, "attributes": {"difficulty": "level"}},
    ),
    "a column of numbers that lacks": Refused(
        ("train_dataset has no column 'levle'", "the attribute 'difficulty'"), trainer=numbered(difficulty="levle")
    ),
    "a column of numbers that lacks, in a stream": Refused(
        ("no column 'levle'", "the attribute 'difficulty'"),
        trainer=numbered(difficulty="levle"),
        streamed=True,
        trains=True,
    ),
    **{
        f"{kind} in the place of a number{', in a stream' * streamed}": Refused(
            (f"has {said} in the column 'level'", "attribute 'difficulty' of a trajectory", "finite number", "filter"),
            trainer=MEASURED,
            rows=levels(value),
            streamed=streamed,
            trains=streamed,
        )
        for kind, value, said in (("None", None, "None"), ("NaN", float("nan"), "nan"))
        for streamed in (False, True)
    },
    "several numbers of a domain": Refused(
        ("of domain", "for its attribute 'part'", "one number for all rows of a domain"),
        trainer=MEASURED,
        rows=of_code,
        trains=True,
    ),
    "a number out of the range": Refused(
        ("attribute 'difficulty' of trajectory", "-1", "above 0"), trainer=MEASURED, rows=levels(-1.0), trains=True
    ),
    "a column of the data for tokens": Refused(
        ("attributes={'entropy': 'level'}", "ENTROPY", "Attribute('entropy', on=trajectory)"),
        trainer=numbered(entropy="level"),
    ),
    "a reward for tokens": Refused(
        ("'rewards/reward'", "a number per completion", "Attribute('entropy', on=trajectory)"),
        trainer=numbered(entropy="rewards/reward"),
    ),
    "a reward function that it has not": Refused(
        ("'rewards/rewrad'", "no reward function", "rewards/reward"), trainer=numbered(difficulty="rewards/rewrad")
    ),
    "a teacher that lacks": Refused(
        ("'opd' reads log_prob(teacher)", "policies={'teacher': MODEL}"), trainer={**OPD, "policies": {}}
    ),
    "a teacher by name": Refused(
        ("policies={'teacher': 'Qwen/Qwen3-8B'}", "AutoModelForCausalLM.from_pretrained('Qwen/Qwen3-8B')"),
        trainer={**OPD, "policies": {"teacher": "Qwen/Qwen3-8B"}},
    ),
    "a teacher that is no model": Refused(
        ("policies={'teacher': 3}", "a model"), trainer={**OPD, "policies": {"teacher": 3}}
    ),
    "a teacher of other words": Refused(
        ("policy 'teacher' has a vocabulary of 5", "the tokenizer has 31"),
        trainer={**OPD, "policies": {"teacher": model(words=5)}},
    ),
    "log-probs of a teacher that are too few": Refused(
        ("completion 0 has a list of 1 in 'taught'", "the log-probs of 'teacher'", "each of its 4 tokens"),
        trainer={**OPD, "policies": {"teacher": "taught"}, "rollout_func": too_short},
        trains=True,
    ),
    "a field of a teacher that lacks": Refused(
        ("no column 'told'", "the log-probs of 'teacher'"),
        trainer={**OPD, "policies": {"teacher": "told"}, "rollout_func": too_short},
        trains=True,
    ),
}

# What looks like some of these, and is not.
ALLOWED = {
    "dropout, and rows alone": Refused((), trainer={**GRPO, "hierarchy": "gspo"}, model={"attention_dropout": 0.1}),
    "dropout, and one pass": Refused((), {"num_iterations": 1}, model={"attention_dropout": 0.1}),
    "a generation after the last window": Refused(
        (), {"gradient_accumulation_steps": 2, "num_iterations": 1, "max_steps": 1}
    ),
    "a value that no label of the data has": Refused(
        (), {"max_steps": 1}, trainer={"parameters": {**FAR, "C_domain": {**FAR["C_domain"], "other": 0.1}}}
    ),
    "labels of a transform": Refused(
        (),
        {"max_steps": 1},
        rows=lambda data: where_code(None)(data).with_transform(
            lambda rows: {**rows, "domain": [name or "code" for name in rows["domain"]]}
        ),
        trains=True,
    ),
    "labels in tensors": Refused(
        (),
        {"max_steps": 1},
        trainer={"labels": {"domain": "line", "prompt_group": "line"}, "parameters": {}},
        rows=lambda data: data.with_format("torch"),
        trains=True,
    ),
    "a divergence without correction": Refused((), {"use_bias_correction_kl": True}),
}
