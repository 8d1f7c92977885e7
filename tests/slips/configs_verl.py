"""Configs of verl."""

from slips.slip import slip

SLIPS = (
    slip(
        "several epochs are one", "configs/test_verl",
        "-(-prompts // mini_batch) * epochs, -prompts % mini_batch", "-(-prompts // mini_batch), -prompts % mini_batch",
    ),
    slip(
        "a wrong path is given up", "configs/test_examples",
        'last = str(name).rpartition(".")[2]', "last = str(name)",
    ),
    slip(
        "clip_ratio replaces the bounds that verl reads", "configs/test_verl",
        'source = f"{ACTOR}clip_ratio" if d.options[name] is None else name', 'source = f"{ACTOR}clip_ratio"',
    ),
    slip(
        "masks of verl's v1 trainer change its normaliser", "configs/test_verl",
        '"kept" if d.is_legacy and mean == "token-mean" else "all"', '"kept"',
    ),
    slip(
        "weights beside those of bypass_mode are applied", "configs/test_verl",
        'if mode == BYPASS and "rollout_is" in asked:', 'if False:',
    ),
    slip(
        "a part of a correction has the dataclass's defaults", "configs/test_verl",
        'else {f"{OWN_CORRECTION}rollout_is": None}', 'else {}',
    ),
    slip(
        "every estimator reads norm_adv_by_std_in_grpo", "configs/test_verl",
        'if d.options.flag(NORM) or estimator == "grpo":', 'if True:',
    ),
    slip(
        "an answer alone is compared with its group", "configs/test_verl",
        'if alone and estimator in OF_GROUPS:', 'if False:',
    ),
    slip(
        "weights of correction that verl has no log-probs for are applied", "configs/test_verl",
        'if asked and not d.options.flag(f"{ROLLOUT}calculate_log_probs"):', 'if False:',
    ),
    slip(
        "a file of one's own in Hydra's defaults is not noticed", "configs/test_verl",
        'if touches and not _OWN_FILES.fullmatch(str(file)):', 'if False:',
    ),
)  # fmt: skip
