"""What an engine samples from, where that is not the distribution whose log-probs the trainer computes.

Readers of configs (TRL's, verl's) call `find_sampling` with the settings of their engine. The tables name the settings
of vLLM, SGLang and transformers, each with the values that change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fibration.configs.findings import ERROR, WARNING, Finding, Severity
from fibration.configs.weights import EngineWeight
from fibration.errors import SpecError, listed, shown


def _table(names: str, *plain: Any) -> dict[str, tuple[Any, ...]]:
    """Settings, with the values beside None, False and empty ones that change nothing."""
    return dict.fromkeys(names.split(), plain)


# Tokens that are left out have the probability 0: the engine's others are divided by the mass that is kept.
CUTS: Mapping[str, tuple[Any, ...]] = {
    **_table("top_p typical_p", 1),
    **_table("top_k", 0, -1),
    **_table("min_p epsilon_cutoff eta_cutoff no_repeat_ngram_size encoder_no_repeat_ngram_size", 0),
    **_table("min_length min_new_tokens min_tokens", 0),
    **_table("top_h allowed_token_ids bad_words bad_words_ids begin_suppress_tokens constraints force_words_ids"),
    **_table("forced_bos_token_id forced_eos_token_id guided_decoding structured_outputs suppress_tokens"),
    **_table("thinking_token_budget"),
}
# Every token keeps a probability, another one.
BENDS: Mapping[str, tuple[Any, ...]] = {
    **_table("repetition_penalty encoder_repetition_penalty guidance_scale num_beams num_beam_groups best_of", 1),
    **_table("presence_penalty frequency_penalty diversity_penalty penalty_alpha", 0),
    **_table("exponential_decay_length_penalty logit_bias sequence_bias watermarking_config"),
    **_table("dola_layers extra_args logits_processors token_healing use_mtp"),
}
# How an answer ends, how it is computed, and what else the engine returns.
HARMLESS = frozenset(
    """
    assistant_confidence_threshold assistant_early_exit assistant_ensemble_weight assistant_lookbehind bos_token_id
    cache_config cache_implementation compile_config continuous_batching_config decoder_start_token_id detokenize
    disable_compile early_stopping eos_token_id flat_logprobs ignore_eos include_stop_str_in_output is_assistant
    length_penalty logprob_token_ids logprobs low_memory max_cache_len max_length max_matching_ngram_size max_new_tokens
    max_time max_tokens n num_assistant_tokens num_assistant_tokens_schedule num_return_sequences output_attentions
    output_hidden_states output_kind output_logits output_scores output_text_buffer_length pad_token_id
    prefill_chunk_size prompt_logprobs prompt_lookup_num_tokens remove_invalid_values renormalize_logits
    repetition_detection return_dict_in_generate seed skip_clone skip_reading_prefix_cache skip_special_tokens
    spaces_between_special_tokens speculation_type stop stop_strings stop_token_ids target_lookbehind
    transformers_version truncate_prompt_tokens use_cache
    """.split()
)
GREEDY = {"do_sample": False, "temperature": 0, "top_k": 1}  # the likeliest token alone
SETTINGS = frozenset((*CUTS, *BENDS, *HARMLESS, "do_sample", "temperature"))


@dataclass(frozen=True)
class Setting:
    """A setting of an engine. `option`: its name in the config, as `generation_kwargs.top_p`."""

    option: str
    value: Any

    def __str__(self) -> str:
        return f"{self.option}={self.value}"


def number(value: Any) -> Any:
    """Returns the number that a text writes, as `"0.9"`, and any other value as it is."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def find_sampling(
    settings: Mapping[str, Setting],
    temperature: float,
    weight: EngineWeight | None,
    is_raw: bool = False,
    processed: str = "",
) -> Iterator[Finding]:
    """Yields what makes the engine sample from another distribution than the trainer's, and what the weights do then.

    - `settings`: the engine's, by their names in the tables above.
    - `temperature`: of the trainer's log-probs.
    - `weight`: what the trainer makes of trainer/engine; None if it ignores the engine's log-probs.
    - `is_raw`: the engine's log-probs are those of its whole distribution, before temperature and cuts.
    - `processed`: what to write for log-probs after temperature and cuts.
    """
    settings = {name: setting for name, setting in settings.items() if setting.value is not None}
    values = {name: number(setting.value) for name, setting in settings.items()}
    for name in {"top_p", "temperature"} & values.keys():
        if not isinstance(values[name], int | float):
            raise SpecError(f"the option '{settings[name].option}'", required="a number", found=shown(values[name]))
    if greedy := next((name for name, value in GREEDY.items() if name in values and values[name] == value), ""):
        plain = {"do_sample": "true", "top_k": "0"}.get(greedy, f"{temperature or 1:g}")
        yield Finding(
            ERROR,
            f"{settings[greedy]}: the engine takes the likeliest token, so that all answers to a prompt are the same, "
            "and none is better than the others.",
            f"{settings[greedy].option}={plain}",
        )
        return
    cuts = {n: s for n, s in settings.items() if n in CUTS and not _is_plain(values[n], CUTS[n])}
    if cuts:
        yield Finding(*_of_cuts(cuts, values, weight, is_raw), _plain(cuts, CUTS))
    bends = {n: s for n, s in settings.items() if n in BENDS and not _is_plain(values[n], BENDS[n])}
    if bends:
        yield Finding(WARNING, _of_bends(listed(bends.values()), weight, is_raw), _plain(bends, BENDS))
    heat = values.get("temperature", temperature)
    if heat != temperature:
        said = f"{settings['temperature']} beside temperature={temperature:g}"
        yield Finding(WARNING, _of_bends(said, weight, is_raw), f"temperature={heat:g}")
    elif is_raw and weight is not None and temperature != 1:
        yield Finding(
            WARNING,
            f"temperature={temperature:g}: the engine's log-probs are those of logits that are not divided by it, and "
            f"the trainer's are of divided ones: {weight.said} weighs tokens by the quotient.",
            processed,
        )


def _is_plain(value: Any, plain: tuple[Any, ...]) -> bool:
    return value is None or value is False or value in ([], {}, "", *plain)


def _plain(settings: Mapping[str, Setting], table: Mapping[str, tuple[Any, ...]]) -> str:
    return " ".join(f"{s.option}={table[name][0] if table[name] else 'null'}" for name, s in settings.items())


def _of_cuts(
    cuts: Mapping[str, Setting], values: Mapping[str, Any], weight: EngineWeight | None, is_raw: bool
) -> tuple[Severity, str]:
    """The severity and the sentence for tokens that are left out. Only `top_p` alone bounds the mass that is kept."""
    top = values["top_p"] if set(cuts) == {"top_p"} and 0 < values["top_p"] < 1 else None
    head = (
        f"Completions are sampled with {listed(cuts.values())}, and log-probs are those of the whole distribution: "
        "tokens that are left out are never sampled"
    )
    if weight is None or is_raw:
        why = "no weight makes up for it" if weight is None else f"{weight.said} does not see it"
        return WARNING, (
            f"{head}, and {why}. The mean of ∇log π over what is sampled is then ∇log of the mass that is kept, not 0: "
            "an advantage that all answers share moves probability to the tokens that are kept."
        )
    head += ". The engine's log-probs are those of the rest"
    between = f", from {top:g} to 1" if top else ""
    if weight.level == "token":
        dropped = f" Where it is below {weight.least:g}, the token is dropped." if weight.least and weight.masks else ""
        return WARNING, (
            f"{head}, so that the weight of a token ({weight.said}) has the mass that is kept there as a factor"
            f"{between}.{dropped}"
        )
    if weight.level == "answer":
        least = f": {top:g}^T at least for T tokens, {top**100:.0e} for 100" if top else ", which falls with its length"
        beyond = ""
        if weight.least:
            beyond = f" Below {weight.least:g} {'it is dropped' if weight.masks else f'it counts {weight.least:g}'}."
        return ERROR, (
            f"{head}, so that the weight of an answer ({weight.said}) has the mass that is kept at each of its tokens "
            f"as a factor{least}.{beyond}"
        )
    lost = weight.masks and bool(weight.least) and (top is None or top < weight.least)
    dropped = f" Answers where that is below {weight.least:g} are dropped." if lost else ""
    return (ERROR if lost else WARNING), (
        f"{head}, so that the geometric mean of an answer's ratios ({weight.said}) has that of the masses that are "
        f"kept as a factor{between}.{dropped}"
    )


def _of_bends(said: str, weight: EngineWeight | None, is_raw: bool) -> str:
    head = f"Completions are sampled with {said}, not from the distribution whose log-probs the trainer has"
    if weight is None:
        return f"{head}, and no weight corrects for it."
    if is_raw:
        return f"{head}, and {weight.said} does not see it: the engine's log-probs are of that one too."
    product = ", and an answer's weight is the product of them" if weight.level == "answer" else ""
    return f"{head}: every weight trainer/engine ({weight.said}) differs from 1 by it{product}."
