"""A model learns even tokens in torchrl: docs/trainers/torchrl.md."""

import torch
from tensordict import TensorDict, lazy_stack
from tokenizers import Tokenizer, models, pre_tokenizers
from torchrl.modules.llm import TransformersWrapper
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from fibration.trainers.torchrl import HierarchyLoss

torch.manual_seed(0)
WORDS, SAMPLES = 24, 8
words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(WORDS)}, unk_token="w0"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0", eos_token="w1")
model = LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                     num_attention_heads=2, pad_token_id=0, eos_token_id=1))  # fmt: skip
model.eval()  # as torchrl asks for
given = {"tokenizer": tokenizer, "input_mode": "tokens"}
sampler = TransformersWrapper(model, generate=True, generate_kwargs={"max_new_tokens": 10, "do_sample": True}, **given)
policy = TransformersWrapper(model, generate=False, **given)
labels = {"prompt_group": "query", "domain": "source"}  # the key of each stratum's labels
loss = HierarchyLoss(policy, "fiberpo_domain_inward", labels=labels, entropy_bonus=False)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
prompts = torch.tensor([[2, 3], [4, 5], [6, 7], [20, 21], [22, 23], [18, 19]])


def row(prompt, answer, advantage, group):
    """One row of a batch, as torchrl's replay buffers have them."""
    full = torch.cat([prompt, answer])
    found = {("tokens", "full"): full, ("tokens", "prompt"): prompt}
    found[("masks", "all_attention_mask")] = torch.ones(len(full), dtype=torch.bool)
    found |= {
        "advantage": advantage.expand(len(full), 1),
        "query": f"prompt {group}",
        "source": "low" if prompt[0] < 9 else "high",
    }
    return TensorDict(found)


for step in range(6):
    asked = prompts.repeat_interleave(SAMPLES, 0)
    with torch.no_grad():
        sampled = sampler(TensorDict({("tokens", "prompt"): asked}, batch_size=[len(asked)]))
    answers = sampled.get(("tokens", "response"), as_list=True)
    rewards = torch.stack([(answer % 2 == 0).float().mean() for answer in answers])  # the share of even tokens
    advantages = rewards - rewards.view(-1, SAMPLES).mean(1).repeat_interleave(SAMPLES)
    groups = [i // SAMPLES for i in range(len(asked))]
    batch = lazy_stack([row(*given) for given in zip(asked, answers, advantages, groups, strict=True)])
    with torch.no_grad():  # the old policy's log-probs, of whole rows
        again = policy(batch.copy()).get(("log_probs", "full"), as_list=True)
        for one, old in zip(batch.unbind(0), again, strict=True):
            one["log_probs", "full"] = old
    for update in range(2):  # the second one is off policy
        result = loss(batch)
        result.loss_objective.backward()
        optimizer.step()
        optimizer.zero_grad()
        shown = {"loss": float(result.loss_objective.detach())}
        shown |= {name: loss.scalars[f"fibration/{name}"] for name in ("token/clipped", "trajectory/-/zeroed", "kl")}
        print(step, update, f"reward {rewards.mean():.3f}", *(f"{k} {x:.3f}" for k, x in shown.items()), sep="  ")
