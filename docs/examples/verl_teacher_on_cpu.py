"""On-policy distillation in verl's own actor worker on CPUs: `opd` reads a teacher's log-probs from the batch.

    python docs/examples/verl_teacher_on_cpu.py

The teacher here is a rule: it gives right words 98 % of its probability. No reward is read. The rest is that of
`verl_on_cpu.py`.
"""

import math

import torch
import verl_on_cpu as plain

RIGHT, WRONG = (math.log(share / (plain.WORDS // 2)) for share in (0.98, 0.02))
sampled = plain.sampled


def taught(policy, batch):
    """A batch, with the teacher's log-prob of every sampled token."""
    data, said = sampled(policy, batch)
    rows = zip(list(data["data_source"]), data["responses"].tolist(), strict=True)
    log_probs = [[RIGHT if plain.DOMAINS[domain](token) else WRONG for token in row] for domain, row in rows]
    data["teacher_log_probs"] = torch.tensor(log_probs)
    data["token_level_rewards"] = torch.zeros(data["teacher_log_probs"].shape)  # `opd` does not read them
    return data, said


plain.sampled, plain.SHOWN = taught, ("gated_ratio/max", "kl")
plain.OPTIONS |= {
    "actor.policy_loss.hierarchy": "opd",
    "actor.policy_loss.parameters": {},
    "actor.policy_loss.policies": {"teacher": "teacher_log_probs"},
}

if __name__ == "__main__":
    plain.main()
