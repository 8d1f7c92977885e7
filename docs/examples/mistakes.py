"""What becomes of the gradient where a loss with levels sees pieces of its batch: `python docs/examples/mistakes.py`"""

import micro_batches
import torch
from toy import Policy, rollouts
from twins import BUDGETS

import fibration


def gradient(op, policy, pieces, weights=None):
    """The mean of what `op.loss` says of each piece, as one vector; `weights(piece)`, if any, come behind the loss."""
    policy.zero_grad()
    for piece in pieces:
        index = op.index(offsets=piece.offsets, prompt_group=piece.prompt_group, domain=piece.domain)
        now = policy(piece)
        coef = op.coefficients(now.detach(), piece.old_log_probs, piece.advantages, index, BUDGETS).values
        (-(coef if weights is None else coef * weights(piece)) * now).sum().div(len(pieces)).backward()
    return torch.cat([p.grad.flatten() for p in policy.parameters()])


def importance(piece):
    """Weights of tokens, as of a sampler that is not quite the policy."""
    return 1 + 0.5 * torch.sin(7 * piece.old_log_probs)


def errors(op, policy, batch):
    """Relative to the gradient of the whole batch, of which weights belong to the advantages."""
    weighted = type(batch)(**{**vars(batch), "advantages": batch.advantages * importance(batch)})
    whole, exact = gradient(op, policy, [batch]), gradient(op, policy, [weighted])
    found = {
        "12 micro-batches, each on its own": (gradient(op, policy, batch.split(12)), whole),
        "2 ranks, each on its own": (gradient(op, policy, batch.split(2)), whole),
        "importance weights behind the loss": (gradient(op, policy, [batch], importance), exact),
    }
    return {mistake: float((wrong - right).norm() / right.norm()) for mistake, (wrong, right) in found.items()}


def first_and_later(updates=4):
    """The errors where the policy is the one that sampled, and after so many updates."""
    op, policy = fibration.compile(fibration.load("fiberpo_domain")), Policy().double()
    batch = rollouts(policy)
    first = errors(op, policy, batch)
    optimizer = torch.optim.SGD(policy.parameters(), lr=4)
    for _ in range(updates):
        optimizer.zero_grad()
        micro_batches.backward(op, policy, [batch], BUDGETS)
        optimizer.step()
    return first, errors(op, policy, batch)


if __name__ == "__main__":
    first, later = first_and_later()
    print(f"{'error of the gradient':36} first update  fifth")
    for mistake, error in later.items():
        print(f"{mistake:36} {first[mistake]:12.0e} {error:6.0%}")
