"""RLOO from rewards, kept near a reference model, in micro-batches: `python docs/examples/from_rewards.py`"""

import torch
from torch import Tensor
from toy import Piece, Policy, join, rollouts

import fibration
from fibration import centred, log_prob, policies, reward, strata

(prompt_group,) = strata("prompt_group")
current, reference = policies("current reference")
apart = log_prob(current) - log_prob(reference)
near = fibration.load("fiberpo_domain").replace(
    name="near",
    advantages=centred(reward, over=prompt_group, leave_one_out=True),
    penalties={"kl": 0.05 * apart * apart / 2},  # its gradient is that of KL(current, reference), near on-policy
)


def scores(batch: Piece) -> Tensor:
    """One reward per trajectory: the share of even tokens."""
    return torch.stack([(tokens % 2 == 0).double().mean() for tokens in batch.token.split(list(batch.lengths))])


def backward(op, policy, frozen, pieces: list[Piece], parameters=None):
    """Leave in `policy` the gradient of the loss over all pieces together, and return its coefficients."""
    whole = join(pieces)
    index = op.index(offsets=whole.offsets, prompt_group=whole.prompt_group, domain=whole.domain)
    with torch.no_grad():
        log_probs, theirs = (torch.cat([model(piece) for piece in pieces]) for model in (policy, frozen))
    given = {"rewards": scores(whole), "policies": {"reference": theirs}}
    coef = op.coefficients(log_probs, whole.old_log_probs, index=index, parameters=parameters, **given)
    for piece, c in zip(pieces, coef.values.split([len(p.token) for p in pieces]), strict=True):
        (-(c * policy(piece))).sum().backward()
    return coef


def main():
    op, policy, frozen = fibration.compile(near), Policy(), Policy()
    optimizer = torch.optim.SGD(policy.parameters(), lr=20)
    batch = rollouts(policy)
    for update in range(4):
        coef = backward(op, policy, frozen, batch.split(12))
        optimizer.step()
        optimizer.zero_grad()
        print(f"update {update}: J = {float(coef.objective):+.6f}, penalty {float(coef.metrics['penalty/kl']):.6f}")


if __name__ == "__main__":
    main()
