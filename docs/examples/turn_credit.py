"""Two baselines per turn, one of which makes the gradient biased: `python docs/examples/turn_credit.py`"""

import torch
from torch import Tensor

import fibration
from fibration import (
    Fibration,
    Hierarchy,
    after,
    clip_gate,
    count,
    log_ratio,
    mass,
    mean,
    position,
    proportional,
    reward,
    strata,
    token_mean,
    total,
    uniform,
    where,
)

TURNS = 2  # of a trajectory, at most
token, turn, trajectory, prompt_group = strata("token turn trajectory prompt_group")
number = position(over=trajectory, of=turn)  # of a token's turn in its trajectory: 0, 1, ...


def of_the_others(rewards):
    """At a token of turn j: the mean of `rewards(j)` over the other trajectories of the prompt group."""
    means = [mean(rewards(j), over=prompt_group, of=trajectory, others=True) for j in range(TURNS)]
    found = means[-1]
    for j in reversed(range(TURNS - 1)):
        found = where(number <= j, means[j], found)
    return found


def in_turn(j):
    """What a trajectory earns in turn j; 0 if it has ended before."""
    return total(where((number >= j) & (number <= j), reward, 0), over=trajectory)


def from_turn(j):
    """What a trajectory earns in turn j and later."""
    return total(where(number >= j, reward, 0), over=trajectory)


# Each turn less the mean of the same turn of others, then the sum over this turn and all later ones.
deviation = total(reward, over=turn) - of_the_others(in_turn)
ADDED_UP = deviation + after(deviation, over=trajectory, of=turn)
# The rewards from the token on, less the mean of what others earn from the same turn on.
FROM_HERE = reward + after(reward, over=trajectory) - of_the_others(from_turn)


def loss(name, advantages, gives_up=()):
    """Budgets for the drift of trajectories, of turns within them, and of tokens within turns."""
    return Hierarchy(
        name=name,
        fibrations=[
            Fibration(token, turn, kernel=uniform()),
            Fibration(turn, trajectory, kernel=proportional(count(token))),
        ],
        gates={trajectory: clip_gate(0.2), turn: clip_gate(0.1).per(mass), token: clip_gate(0.1).per(mass)},
        decomposition=log_ratio(scale=mass),
        objective=token_mean(),
        groups=[prompt_group],
        advantages=advantages,
        gives_up=dict(gives_up),
    )


# ------------------------------------------------------------ an agent

GROUPS, SAMPLES, WIDTH = 16, 8, 4  # two tokens in each turn
ENOUGH = 0.4  # the reward of an agent that ends after its first turn


class Agent(torch.nn.Module):
    """Logits of two actions in each of four states. The first turn's last token ends the trajectory (0) or goes on (1).

    The second turn's last token is wrong (0) or right (1). The first token of a turn has no effect.
    """

    def __init__(self):
        super().__init__()
        self.logits = torch.nn.Parameter(torch.zeros(WIDTH, 2, dtype=torch.float64))

    def forward(self, actions: Tensor) -> Tensor:
        every = self.logits.log_softmax(-1).expand(len(actions), WIDTH, 2)
        return every.gather(-1, actions[..., None])[..., 0]

    def sample(self, generator: torch.Generator):
        """Actions, mask and rewards per token, all [rows, 4]: a turn's reward is at its last token."""
        rows = GROUPS * SAMPLES
        chances = self.logits.detach().softmax(-1)
        actions = torch.stack([torch.multinomial(p, rows, True, generator=generator) for p in chances], 1)
        on = actions[:, 1] == 1
        mask = torch.ones(rows, WIDTH, dtype=torch.bool)
        mask[:, 2:] = on[:, None]
        rewards = torch.zeros(rows, WIDTH, dtype=torch.float64)
        rewards[:, 1] = torch.where(on, 0, ENOUGH)
        rewards[:, 3] = torch.where(on, actions[:, 3], 0)
        return actions, mask, rewards


def index_of(op, mask: Tensor):
    """Turns are numbered through the batch, because a label names one turn of the whole batch."""
    rows = torch.arange(len(mask))[:, None]
    groups = (torch.arange(len(mask)) // SAMPLES).tolist()
    return op.index(mask=mask, turn=TURNS * rows + torch.tensor([0, 0, 1, 1]), prompt_group=groups)


def train(hierarchy, batches=60, updates=2):
    """The mean reward of each batch, and the share of trajectories that take a second turn."""
    op, agent, generator = fibration.compile(hierarchy), Agent(), torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD(agent.parameters(), lr=2)
    for _ in range(batches):
        actions, mask, rewards = agent.sample(generator)
        old = agent(actions).detach()
        index = index_of(op, mask)
        for _ in range(updates):  # the second one is off policy
            optimizer.zero_grad()
            op.loss(agent(actions), old, index=index, rewards=rewards).loss.backward()
            optimizer.step()
        yield float(rewards.sum(1).mean()), float(mask[:, 2].double().mean())


def main():
    (refused,) = (v for v in loss("added_up", ADDED_UP).verify().verdicts if v.law == "baseline")
    print(f"baseline of added_up: {refused.status}\n{refused.counterexample.text}")
    reasons = dict.fromkeys(("baseline", "baseline of what is left of advantages"), "to see what it trains")
    biased, right = loss("added_up", ADDED_UP, reasons), loss("from_here", FROM_HERE)
    print("\n           added_up         from_here")
    print("batch   reward  goes on   reward  goes on")
    for batch, rows in enumerate(zip(train(biased), train(right), strict=True)):
        if batch % 10 == 9:
            print(f"{batch + 1:5}" + "".join(f"{a:9.2f}{b:9.2f}" for a, b in rows))


if __name__ == "__main__":
    main()
