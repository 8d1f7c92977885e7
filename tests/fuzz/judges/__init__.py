"""One judge per law: what it draws, and what contradicts a verdict."""

from fuzz.judges import divergences, gate_laws, samples, token_laws
from fuzz.judges.judge import Judge

JUDGES: dict[str, Judge] = {
    judge.name: judge for judge in (*token_laws.JUDGES, *gate_laws.JUDGES, *samples.JUDGES, *divergences.JUDGES)
}
