"""Coefficients of a hierarchy in SkyRL: docs/trainers/others.md says how to use this file."""

import sys

import ray
from skyrl.backends.skyrl_train.distributed.dispatch import loss_fn_outputs_to_tensor
from skyrl.backends.skyrl_train.utils.ppo_utils import PolicyLossRegistry
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.entrypoints.main_base import BasePPOExp, validate_cfg
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils import initialize_ray

import fibration
from fibration.trainers.window import Window, named

op = fibration.compile(fibration.load("fiberpo_domain_inward"))


def coefficients(log_probs, old_log_probs, advantages, config, loss_mask=None, rollout_logprobs=None):
    return -(advantages * log_probs * loss_mask).sum(), {}  # workers multiply by the number of ranks


PolicyLossRegistry.register("coefficients", coefficients)


class HierarchicalTrainer(RayPPOTrainer):
    async def generate(self, input_batch):
        samples = zip(input_batch["trajectory_ids"], input_batch["env_extras"], strict=True)
        self.domains = {sample.instance_id: extras["data_source"] for sample, extras in samples}
        return await super().generate(input_batch)

    def convert_to_training_input(self, generator_output, uids):
        self.uids = uids
        return super().convert_to_training_input(generator_output, uids)

    def _execute_training_step(self, model, data):
        if model != "policy":
            return super()._execute_training_step(model, data)
        for _ in range(self.cfg.trainer.update_epochs_per_batch):
            for start, end in data.metadata["policy_mini_batch_boundaries"]:
                step, uids = data[start:end], self.uids[start:end]
                (parts,) = self.dispatch.stage_data(model, step, [(0, end - start)])
                outputs = self.dispatch.forward_from_staged(model, parts).loss_fn_outputs
                now = loss_fn_outputs_to_tensor(outputs, key="logprobs")[: end - start]
                labels = {"prompt_group": uids, "domain": [self.domains[uid] for uid in uids]}
                window = Window(op, step["loss_mask"], step["action_log_probs"], step["advantages"], labels)
                step["advantages"] = window.coefficients(now).values
                (parts,) = self.dispatch.stage_data(model, step, [(0, end - start)])
                status = self.dispatch.forward_backward_from_staged(model, parts)
                self.dispatch.optim_step(model)
        self.all_metrics.update(named(window.coef.metrics))
        return status.metrics


class Experiment(BasePPOExp):
    def get_trainer(self, **given):
        return HierarchicalTrainer(**given)


@ray.remote(num_cpus=1)
def run(cfg):
    Experiment(cfg).run()


def main():
    cfg = SkyRLTrainConfig.from_cli_overrides(sys.argv[1:])
    validate_cfg(cfg)
    initialize_ray(cfg)
    ray.get(run.remote(cfg))
