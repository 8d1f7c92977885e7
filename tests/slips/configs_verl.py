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
        '"kept" if legacy and mean == "token-mean" else "all"', '"kept"',
    ),
    slip(
        "bypass_mode of the v1 trainer has the loss of the legacy one", "configs/test_verl",
        'return BYPASS if legacy and d.options.flag', 'return BYPASS if d.options.flag',
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
