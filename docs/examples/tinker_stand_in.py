"""A stand-in for Tinker's service with a model of 1024 numbers, for loops without a key: `python tinker_stand_in.py`

It prints its address for `TINKER_BASE_URL`. It answers what the client package `tinker` sends to train and to sample.
The model's logits are a table: one row for each token, of the tokens that may follow it.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import torch
from tinker.proto import tinker_public_pb2 as proto
from torch import Tensor

VOCABULARY = 32
PROTO = "application/x-protobuf"


def cross_entropy(log_probs: list[Tensor], weights: list[Tensor]) -> Tensor:
    """The loss of Tinker's service: a sum over all tokens of all rows."""
    return -torch.stack([(w * row).sum() for row, w in zip(log_probs, weights, strict=True)]).sum()


class Service(ThreadingHTTPServer):
    """Listens on a port of this machine. `loss`: the loss of `forward_backward`. `chunk`: rows of one request."""

    daemon_threads = True

    def __init__(self, port: int = 0, loss: Any = cross_entropy, chunk: int = 1024) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.loss, self.lock = loss, threading.Lock()
        self.config = {"fwdbwd_max_chunk_len": chunk, "use_pyqwest_transport": False}
        self.models: dict[str, tuple[Tensor, torch.optim.AdamW]] = {}
        self.samplers: dict[str, Tensor] = {}
        self.results: dict[str, Any] = {}
        self.numbers = itertools.count()
        self.draw = torch.Generator().manual_seed(0)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def later(self, result: Any, **more: Any) -> dict[str, Any]:
        """A promise of a result, which is there already."""
        name = f"request {next(self.numbers)}"
        self.results[name] = result
        return {"request_id": name, **more}

    def create_model(self, asked: dict[str, Any]) -> dict[str, Any]:
        name = f"{asked['session_id']}:train:{asked['model_seq_id']}"
        table = torch.randn(VOCABULARY, VOCABULARY, generator=self.draw, dtype=torch.float64).requires_grad_()
        self.models[name] = table, torch.optim.AdamW([table], weight_decay=0.0)
        return self.later({"model_id": name})

    def forward_backward(self, body: bytes) -> dict[str, Any]:
        asked = proto.ForwardBackwardRequest.FromString(body)
        table, _ = self.models[asked.model_id]
        rows, weights = [], []
        for datum in asked.data:
            (read,) = (np.frombuffer(chunk.encoded_text.tokens, np.int32).astype(int) for chunk in datum.model_input)
            target = np.frombuffer(datum.loss_fn_inputs["target_tokens"].dense, np.int64)
            weights.append(torch.tensor(np.frombuffer(datum.loss_fn_inputs["weights"].dense, np.float32)).double())
            rows.append(table.log_softmax(1)[torch.tensor(read), torch.tensor(target)])
        loss = self.loss(rows, weights)
        if not asked.forward_only:
            loss.backward()
        given = np.concatenate([row.detach().numpy() for row in rows]).astype(np.float32)  # what the service sends
        ends = np.array([0, *itertools.accumulate(4 * len(row) for row in rows)], np.int64)
        field = proto.BatchedTensor(data=given.tobytes(), offsets=ends.tobytes(), dtype=proto.DTYPE_FLOAT32)
        record = proto.ArrayRecord(fields={"logprobs": field}, num_datums=len(rows))
        metrics = {"loss:sum": float(loss.detach())}
        return self.later(proto.ForwardBackwardOutput(loss_fn_outputs=[record], metrics=metrics))

    def optim_step(self, asked: dict[str, Any]) -> dict[str, Any]:
        table, optimizer = self.models[asked["model_id"]]
        adam = asked["adam_params"]
        settings = {"lr": adam["learning_rate"], "betas": (adam["beta1"], adam["beta2"]), "eps": adam["eps"]}
        optimizer.param_groups[0].update(settings)
        norm = 0.0 if table.grad is None else float(table.grad.norm())
        optimizer.step()
        optimizer.zero_grad()
        return self.later({"metrics": {"grad_norm": norm}})

    def save_weights_for_sampler(self, asked: dict[str, Any]) -> dict[str, Any]:
        name = f"sampler {next(self.numbers)}"
        self.samplers[name] = self.models[asked["model_id"]][0].detach().clone()
        return self.later({"sampling_session_id": name})

    def asample(self, asked: dict[str, Any]) -> dict[str, Any]:
        table = self.samplers[asked["sampling_session_id"]].log_softmax(1)
        found = proto.SampleResponse()
        for _ in range(asked["num_samples"]):
            said = [asked["prompt"]["chunks"][-1]["tokens"][-1]]
            for _ in range(asked["sampling_params"]["max_tokens"]):
                said.append(int(torch.multinomial(table[said[-1]].exp(), 1, generator=self.draw)))
            tokens, scores = np.array(said[1:], np.int32), table[said[:-1], said[1:]].numpy().astype(np.float32)
            found.sequences.add(
                stop_reason=proto.STOP_REASON_LENGTH, tokens=tokens.tobytes(), logprobs=scores.tobytes()
            )
        return self.later(found, sample_sequence_ids=[f"sequence {next(self.numbers)}" for _ in found.sequences])

    def answer(self, name: str, body: bytes) -> Any:
        """What a request gets: a dict as JSON, or a protobuf message."""
        if name == "forward_backward":
            return self.forward_backward(body)
        asked = json.loads(body or b"{}")
        if name == "get_info":
            return {"model_data": {"model_name": "table"}, "model_id": asked["model_id"]}
        if name == "retrieve_future":
            return self.results.pop(asked["request_id"])
        if name in ("create_model", "optim_step", "save_weights_for_sampler", "asample"):
            return getattr(self, name)(asked)
        fixed = {"client/config": self.config, "create_session": {"session_id": "here"}}
        return {**fixed, "telemetry": {"status": "accepted"}}.get(name, {})


class Handler(BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            found = self.server.answer(self.path.removeprefix("/api/v1/"), body)
        is_json = isinstance(found, dict)
        sent = json.dumps(found).encode() if is_json else found.SerializeToString()
        self.send_response(200)
        self.send_header("Content-Type", "application/json" if is_json else PROTO)
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *_: Any) -> None:
        pass


if __name__ == "__main__":
    service = Service(port=int(sys.argv[1]) if len(sys.argv) > 1 else 8321)
    print(f"export TINKER_BASE_URL={service.url} TINKER_API_KEY=tml-none")
    service.serve_forever()
