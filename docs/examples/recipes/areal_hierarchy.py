"""Coefficients of a hierarchy in AReaL: docs/trainers/others.md says how to use this file."""

import areal.engine
import torch
from areal.engine.fsdp_engine import FSDPPPOActor
from areal.workflow.rlvr import RLVRWorkflow
from torch.nn.functional import pad

import fibration
from fibration.trainers.advantages import coefficients_as_advantages
from fibration.trainers.window import Window

op = fibration.compile(fibration.load("fiberpo_domain_inward"))
numbers = {"prompt_group": "prompt_number", "domain": "domain_number"}  # columns of whole numbers in the dataset


class Labelled(RLVRWorkflow):
    async def arun_episode(self, engine, data):
        found = await super().arun_episode(engine, data)
        return found | {name: torch.full_like(found["input_ids"], data[name]) for name in numbers.values()}


class HierarchicalActor(FSDPPPOActor):
    def train_batch(self, input_, loss_fn, loss_weight_fn):
        with torch.no_grad():
            now = self.forward_batch(input_)
        at = now.device
        mask, old, a = (input_[name].to(at) for name in ("loss_mask", "logprobs", "advantages"))
        labels = {stratum: input_[name][:, 0].tolist() for stratum, name in numbers.items()}
        window = Window(op, mask, old, a, labels, group=self.data_parallel_group)
        c = window.coefficients(pad(now, (0, mask.shape[1] - now.shape[1]))).values
        a = coefficients_as_advantages(c, mask, reduction="token-mean", count=window.tokens)

        def at_ratio_one(logprobs, entropy, data, **more):
            return loss_fn(logprobs, entropy, {**data, "prox_logp": logprobs.detach()}, **more)

        return super().train_batch({**input_, "advantages": a.to(input_["advantages"])}, at_ratio_one, loss_weight_fn)


areal.engine.FSDPPPOActor = HierarchicalActor
