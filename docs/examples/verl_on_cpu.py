"""verl's own actor worker on CPUs learns two domains under `fiberpo_domain`, with a tiny model and no inference engine.

    python docs/examples/verl_on_cpu.py
    torchrun --nproc-per-node 2 docs/examples/verl_on_cpu.py

What verl does around its worker, sampling and scoring, is written out here; `python -m verl.trainer.main_ppo` does it
on GPUs with the same config. Every batch serves two optimizer steps, of which the second is off policy.
"""

import os
import tempfile
import warnings
from contextlib import nullcontext
from types import SimpleNamespace

import torch
import torch.distributed as dist
import verl
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf, open_dict
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from verl.plugin.platform import set_platform
from verl.plugin.platform.platform_base import PlatformBase
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
from verl.utils import tensordict_utils as tu
from verl.workers.utils.padding import left_right_2_no_padding

WORDS, PROMPT, ANSWER, SAMPLES, BATCHES = 16, 2, 6, 8, 12
DOMAINS = {"even": lambda token: token % 2 == 0, "high": lambda token: token >= WORDS // 2}
PARAMETERS = {"C_domain": 0.1, "C_prompt_group": 0.05, "C_trajectory": 0.1}
OPTIONS = {
    "model.override_config": {"attn_implementation": "sdpa"},
    "model.use_remove_padding": False,
    "rollout.name": "vllm",  # asked for, and not used
    "rollout.log_prob_micro_batch_size_per_gpu": 8,
    "actor.strategy": "fsdp2",
    "actor.ppo_micro_batch_size_per_gpu": 8,
    "actor.fsdp_config.mixed_precision": {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
    "actor.fsdp_config.use_torch_compile": False,
    "actor.optim.lr": 0.01,
    "actor.optim.total_training_steps": 2 * BATCHES,
    "actor.policy_loss._target_": "fibration.trainers.verl.FibrationPolicyLossConfig",
    "actor.policy_loss.loss_mode": "fibration",
    "actor.policy_loss.hierarchy": "fiberpo_domain",
    "actor.policy_loss.parameters": PARAMETERS,
    "actor.policy_loss.skip_dead_rows": False,  # so that the metrics of every step cover all rows
}
SHOWN = ("domain/-/zeroed", "prompt_group/-/zeroed", "trajectory/-/zeroed", "token/clipped", "kl")


class Cpu(PlatformBase):
    """A platform for what verl's workers ask of an accelerator; verl has none for CPUs."""

    device_name, vendor_name = "cpu", "none"
    no_memory = dict.fromkeys(("memory_allocated", "memory_reserved", "max_memory_allocated"), lambda: 0)
    device_module = SimpleNamespace(
        **no_memory,
        max_memory_reserved=lambda: 0,
        mem_get_info=lambda: (0, 0),
        is_available=lambda: False,
        empty_cache=lambda: None,
        synchronize=lambda: None,
        get_device_name=lambda: "cpu",
    )

    def is_available(self):
        return True

    def current_device(self):
        return torch.device("cpu")

    def device_count(self):
        return 1

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    def ray_resource_name(self):
        return "CPU"

    def ray_noset_envvars(self):
        return []

    def is_ipc_supported(self):
        return False

    def nvtx_range(self, msg):
        return nullcontext()

    def nothing(self, *_):
        return None

    set_device = synchronize = manual_seed = manual_seed_all = set_allocator_settings = empty_cache = nothing
    get_device_capability = profiler_start = profiler_stop = cudart = nothing


def worker(folder):
    """verl's worker of an actor, made of verl's own config with the options above."""
    set_platform(Cpu())
    with warnings.catch_warnings():  # of engines that need what is not installed
        warnings.simplefilter("ignore")
        from verl.workers.engine import EngineRegistry
        from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
        from verl.workers.engine_workers import ActorRolloutRefWorker
    EngineRegistry.register(model_type="language_model", backend="fsdp2", device="cpu")(FSDPEngineWithLMHead)
    with initialize_config_dir(os.path.join(os.path.dirname(verl.__file__), "trainer", "config"), version_base=None):
        config = compose("ppo_trainer").actor_rollout_ref
    with open_dict(config):
        for key, value in {"model.path": folder, **OPTIONS}.items():
            OmegaConf.update(config, key, value, force_add=True)
    made = ActorRolloutRefWorker(config=config, role="actor")
    made.init_model()
    return made


def save_model(folder):
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, max_position_embeddings=64, **sizes)).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(WORDS)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0", eos_token="w1").save_pretrained(folder)


@torch.no_grad()
def sampled(policy, batch):
    """A batch of this rank as verl's trainer sends it to its workers, and the mean reward of each domain."""
    rows = [(domain, n) for n, domain in enumerate(list(DOMAINS) * 2) for _ in range(SAMPLES)]
    first = {domain: n for n, domain in enumerate(DOMAINS)}
    torch.manual_seed(1000 * batch + dist.get_rank())
    ids = torch.tensor([[first[domain], n] for domain, n in rows])
    chosen = []
    for _ in range(ANSWER):
        log_probs = (
            policy(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[:, -1].log_softmax(-1)
        )
        token = torch.multinomial(log_probs.exp(), 1)
        chosen.append(log_probs.gather(1, token))
        ids = torch.cat([ids, token], 1)
    mask = torch.ones(len(rows), ANSWER, dtype=torch.int64)
    answers = ids[:, PROMPT:].tolist()
    rewards = torch.tensor(
        [sum(DOMAINS[domain](t) for t in row) / ANSWER for (domain, _), row in zip(rows, answers, strict=True)]
    )
    uids = [f"{batch}/{dist.get_rank()}/{n}" for _, n in rows]
    scores = torch.zeros(mask.shape).index_copy_(1, torch.tensor([ANSWER - 1]), rewards[:, None])
    tensors = dict(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        position_ids=torch.arange(ids.shape[1]).expand_as(ids).clone(),
        prompts=ids[:, :PROMPT],
        responses=ids[:, PROMPT:],
        response_mask=mask,
        old_log_probs=torch.cat(chosen, 1),
        advantages=compute_grpo_outcome_advantage(scores, mask, index=uids)[0],
    )
    labels = dict(uid=uids, data_source=[domain for domain, _ in rows])  # of prompt_group, of domain
    said = {domain: float(rewards[[d == domain for d, _ in rows]].mean()) for domain in DOMAINS}
    return left_right_2_no_padding(tu.get_tensordict(tensors | labels)), said


def main():
    for name, alone in dict(RANK=0, WORLD_SIZE=1, LOCAL_RANK=0, MASTER_ADDR="localhost", MASTER_PORT=29511).items():
        os.environ.setdefault(name, str(alone))
    dist.init_process_group("gloo")
    torch.set_num_threads(1)  # the model is so small that several threads would mostly wait for each other
    given = [tempfile.mkdtemp()]
    dist.broadcast_object_list(given)
    if dist.get_rank() == 0:
        save_model(given[0])
    dist.barrier()
    actor = worker(given[0])
    if dist.get_rank() == 0:
        print("batch   even   high  " + "  ".join(SHOWN))
    for batch in range(BATCHES):
        data, rewards = sampled(actor.actor.engine.module, batch)
        size = len(data) * dist.get_world_size()  # of an optimizer step, on all ranks
        tu.assign_non_tensor(
            data, temperature=1.0, mini_batch_size=size, global_batch_size=size, epochs=2, seed=1, compute_loss=True,
            calculate_entropy=False, dataloader_kwargs={"shuffle": False},
        )  # fmt: skip
        metrics = tu.get(actor.update_actor(data), "metrics")
        if dist.get_rank() == 0:
            found = "  ".join(f"{metrics[f'fibration/{name}'][-1]:{len(name)}.3f}" for name in SHOWN)
            print(f"{batch:5} {rewards['even']:6.2f} {rewards['high']:6.2f}  {found}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
