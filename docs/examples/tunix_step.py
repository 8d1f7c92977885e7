"""Two updates of Tunix's GRPOLearner with a generated JAX loss, and the same two updates by an own formula.

Needs google-tunix (0.1.7 ran), and the module that `fibration compile dapo --backend jax -o losses` writes. The model
and the vocabulary are the toys of Tunix's own tests. The second update is off policy. See docs/how-to/jax.md.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh
from losses import dapo_jax
from tunix.rl import common, function_registry, rl_cluster
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
from tunix.rl.rollout.base_rollout import RolloutConfig
from tunix.tests.test_common import MockVocab, ModelConfig, ToyTransformer

LEARNING_RATE = 0.05
seen = []  # the batch of every update


def log_probs_of(model, x, algo_config, pad_id, eos_id):
    return common.compute_per_token_logps(
        *nnx.split(model),
        prompt_tokens=x.prompt_ids,
        completion_tokens=x.completion_ids,
        pad_id=pad_id,
        eos_id=eos_id,
        stop_gradient=False,
        temperature=algo_config.temperature,
    )


@function_registry.register_policy_loss_fn("dapo_of_fibration")
def policy_loss(model, train_example, algo_config, pad_id, eos_id, **_):
    x = train_example
    log_probs = log_probs_of(model, x, algo_config, pad_id, eos_id)
    jax.debug.callback(lambda batch: seen.append(batch), x)
    old = log_probs if x.old_per_token_logps is None else x.old_per_token_logps
    loss = dapo_jax.loss(log_probs, old, x.advantages, mask=x.completion_mask)
    return loss, {"kl": 0.0, "pg_clipfrac": 0.0}  # GRPOLearner logs these two


def own_loss(model, x, *given):
    """DAPO's formula, of the batch that Tunix made."""
    ratio = jnp.exp(log_probs_of(model, x, *given) - x.old_per_token_logps)
    a = x.advantages[:, None]
    term = jnp.minimum(ratio * a, jnp.clip(ratio, 1 - 0.2, 1 + 0.28) * a)
    return -jnp.where(x.completion_mask, term, 0).sum() / x.completion_mask.sum()


def toy():
    return ToyTransformer(ModelConfig(vocab_size=MockVocab().GetPieceSize()), rngs=nnx.Rngs(0))


mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
roles = (rl_cluster.Role.ACTOR, rl_cluster.Role.REFERENCE, rl_cluster.Role.ROLLOUT)
training = rl_cluster.RLTrainingConfig(
    actor_optimizer=optax.sgd(LEARNING_RATE),
    eval_every_n_steps=10,
    max_steps=2,
    mini_batch_size=4,
    train_micro_batch_size=4,  # one micro-batch in a step: Tunix averages the losses of several
)
rollouts = RolloutConfig(max_prompt_length=32, max_tokens_to_generate=10, kv_cache_size=128, temperature=1.0)
cluster = rl_cluster.RLCluster(
    actor=toy(),
    reference=toy(),
    tokenizer=MockVocab(),
    cluster_config=rl_cluster.ClusterConfig(
        role_to_mesh=dict.fromkeys(roles, mesh), training_config=training, rollout_config=rollouts
    ),
)
config = GRPOConfig(num_generations=2, num_iterations=2, beta=0.0, policy_loss_fn="dapo_of_fibration")
learner = GRPOLearner(
    rl_cluster=cluster,
    algo_config=config,
    reward_fns=lambda prompts, completions, **_: [float(i % 2) for i in range(len(completions))],
)
learner.train([{"prompts": np.array(["input string", "hello world", "My name", "hello there"])}])
jax.effects_barrier()

model = toy()
start = jax.tree.map(jnp.copy, nnx.state(model, nnx.Param))
for x in seen:
    given = config, cluster.rollout.pad_id(), cluster.rollout.eos_id()
    ratio = jnp.exp(log_probs_of(model, x, *given) - x.old_per_token_logps)[x.completion_mask]
    print(f"{int(x.completion_mask.sum())} tokens, ratios from {float(ratio.min()):.2f} to {float(ratio.max()):.2f}")
    gradient = nnx.grad(own_loss)(model, x, *given)
    nnx.update(model, jax.tree.map(lambda w, g: w - LEARNING_RATE * g, nnx.state(model, nnx.Param), gradient))


def largest(a, b):
    return max(float(jnp.abs(x - y).max()) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


trained, own = (nnx.state(m, nnx.Param) for m in (cluster.actor_trainer.model, model))
print(f"weights moved by {largest(trained, start):.1e}, and differ from the own updates by {largest(trained, own):.1e}")
