"""A model learns even tokens in Tinker: docs/trainers/tinker.md."""

import tinker
import torch

import fibration
from fibration.trainers.tinker import custom_loss

op = fibration.compile(fibration.load("fiberpo_domain_inward"))  # domain → prompt group → trajectory → token
PROMPTS = {"low": [[2, 3], [4, 5], [6, 7]], "high": [[20, 21], [22, 23], [24, 25]]}  # by domain, as token ids
LEARNING_RATE = 0.3  # for the stand-in's table; 1e-4 for a language model
client = tinker.ServiceClient().create_lora_training_client(base_model="Qwen/Qwen3-8B").result()


def reward(tokens):
    """The share of even tokens."""
    return sum(token % 2 == 0 for token in tokens) / len(tokens)


for step in range(6):
    sampler = client.save_weights_and_get_sampling_client().result()
    data, groups, domains, rewards = [], [], [], []
    for domain, prompts in PROMPTS.items():
        for prompt in prompts:
            asked = tinker.SamplingParams(max_tokens=12)
            found = sampler.sample(tinker.ModelInput.from_ints(prompt), num_samples=8, sampling_params=asked).result()
            scores = [reward(sequence.tokens) for sequence in found.sequences]
            for sequence, score in zip(found.sequences, scores, strict=True):
                said, n = list(sequence.tokens), len(prompt) - 1  # a prompt has n targets
                fields = {
                    "target_tokens": torch.tensor(prompt[1:] + said),
                    "logprobs": torch.tensor([0.0] * n + list(sequence.logprobs)),
                    "advantages": torch.tensor([0.0] * n + [score - sum(scores) / len(scores)] * len(said)),
                    "mask": torch.tensor([0.0] * n + [1.0] * len(said)),
                }
                data.append(
                    tinker.Datum(model_input=tinker.ModelInput.from_ints(prompt + said[:-1]), loss_fn_inputs=fields)
                )
            groups += [f"{domain} {prompt}"] * len(scores)
            domains += [domain] * len(scores)
            rewards += scores
    loss = custom_loss(op, {"prompt_group": groups, "domain": domains})
    for update in range(2):  # the second one is off policy
        done = client.forward_backward_custom(data, loss)
        moved = client.optim_step(tinker.AdamParams(learning_rate=LEARNING_RATE))
        metrics = done.result().metrics
        moved.result()
        shown = {"loss": metrics["loss:sum"]} | {
            name: metrics[f"fibration/{name}"] for name in ("token/clipped", "trajectory/-/zeroed", "kl")
        }
        print(
            step,
            update,
            f"reward {sum(rewards) / len(rewards):.3f}",
            *(f"{k} {x:.3f}" for k, x in shown.items()),
            sep="  ",
        )
