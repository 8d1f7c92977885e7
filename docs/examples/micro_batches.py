"""Gradients of a whole batch, micro-batch by micro-batch, in a plain loop: `python docs/examples/micro_batches.py`"""

import torch
from toy import Piece, Policy, join, rollouts

import fibration


def backward(op, policy, pieces: list[Piece], parameters=None):
    """Leave in `policy` the gradient of the loss over all pieces together, and return its coefficients."""
    whole = join(pieces)
    index = op.index(offsets=whole.offsets, prompt_group=whole.prompt_group, domain=whole.domain)
    with torch.no_grad():
        log_probs = torch.cat([policy(piece) for piece in pieces])
    coef = op.coefficients(log_probs, whole.old_log_probs, whole.advantages, index, parameters)
    for piece, c in zip(pieces, coef.values.split([len(p.token) for p in pieces]), strict=True):
        (-(c * policy(piece))).sum().backward()
    return coef


def main():
    op, policy = fibration.compile(fibration.load("fiberpo_domain")), Policy()
    optimizer = torch.optim.SGD(policy.parameters(), lr=20)
    batch = rollouts(policy)
    for update in range(4):
        coef = backward(op, policy, batch.split(12))
        optimizer.step()
        optimizer.zero_grad()
        print(f"update {update}: J = {float(coef.objective):+.6f}, clipped {float(coef.metrics['token/clipped']):.2%}")


if __name__ == "__main__":
    main()
