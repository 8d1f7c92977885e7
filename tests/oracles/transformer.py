"""The study's transformer, written token by token for one model and one sequence, in float64."""

import torch
from torch import Tensor


def norm(x: Tensor) -> Tensor:
    centred = x - x.mean()
    return centred / (centred.square().mean() + 1e-5).sqrt()


def logits(shape, flat: Tensor, text: list[int]) -> Tensor:
    """What follows each token of a text: `[len(text), tokens of the vocabulary]`, of weights `[size]`."""
    weights, at = {}, 0
    for name, (a, b) in shape.weights.items():
        weights[name] = flat[at : at + a * b].reshape(a, b)
        at += a * b
    states = [weights["token"][t] + weights["position"][i] for i, t in enumerate(text)]
    d = shape.width // shape.heads
    for k in range(shape.layers):
        parts = [norm(x) @ weights[f"{k}.qkv"] for x in states]
        q, key, v = ([p[n * shape.width : (n + 1) * shape.width] for p in parts] for n in range(3))
        for i in range(len(text)):
            seen = []
            for h in range(shape.heads):
                own = slice(h * d, (h + 1) * d)
                share = torch.stack([q[i][own] @ key[j][own] / d**0.5 for j in range(i + 1)]).softmax(0)
                seen.append(sum(s * v[j][own] for j, s in enumerate(share)))
            states[i] = states[i] + torch.cat(seen) @ weights[f"{k}.out"]
        for i, x in enumerate(states):
            states[i] = x + (norm(x) @ weights[f"{k}.up"]).clamp(min=0) @ weights[f"{k}.down"]
    return torch.stack([norm(x) @ weights["head"] for x in states])


def of_response(shape, flat: Tensor, prompt: list[int], response: list[int]) -> Tensor:
    """Log-probs of all tokens at each place of a response, `[len(response), vocabulary]`."""
    return logits(shape, flat, [*prompt, *response[:-1]])[len(prompt) - 1 :].log_softmax(-1)
