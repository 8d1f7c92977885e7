"""One judge per law: it draws cases and looks for contradictions to verdicts."""

from fuzz.judges import (
    bound_facts,
    calls,
    couplings,
    divergences,
    gate_laws,
    inward_law,
    joint_facts,
    kernel_laws,
    level_facts,
    pairs,
    samples,
    token_laws,
)
from fuzz.judges.judge import Judge

ALL: tuple[Judge, ...] = (
    *token_laws.JUDGES, *gate_laws.JUDGES, *inward_law.JUDGES, *joint_facts.JUDGES, *samples.JUDGES, *divergences.JUDGES,
    *kernel_laws.JUDGES, *calls.JUDGES, *pairs.JUDGES, *level_facts.JUDGES, *couplings.JUDGES, *bound_facts.JUDGES,
)  # fmt: skip
JUDGES = {judge.name: judge for judge in ALL}
