"""The pilot's runs: do log ratios within an answer go together, and do domains share the pull?

    python docs/studies/levels/pilot.py --advantages running --rate 3e-5 --rollouts 6    # stopped in its fifth
    python docs/studies/levels/pilot.py --advantages running --rate 1e-4 --rollouts 4
    python docs/studies/levels/pilot.py --report

SmolLM2-135M-Instruct answers questions of four domains of reasoning-gym with at most 128 tokens, and is trained with
`grpo`. Each rollout serves four epochs, of which the last three are off policy. Every epoch appends a line to
results/. It needs what docs/examples/trl_reasoning.py needs.
"""

import argparse
import itertools
import json
import re
import sys
import time
from pathlib import Path

import torch
from drift import correlation
from torch import Tensor

import fibration
from fibration import (
    Fibration,
    Hierarchy,
    count,
    identity_gate,
    log_ratio,
    mass,
    proportional,
    strata,
    trajectory_mean,
    uniform,
)

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[1] / "examples"))
from record_rollouts import load_model  # noqa: E402
from trl_reasoning import TASKS, questions  # noqa: E402

QUESTIONS, SAMPLES, TOKENS = 2, 4, 128  # per domain, per question, per answer
EPOCHS, ROWS, LAYERS = 4, 8, 10  # of a rollout, of a forward pass, of the 30 that are trained, from the last
SCALES = (1.0, 1.0, 4.0, 10.0)  # of the domains' rewards, with a running baseline
DECAY = 0.7  # of the running baselines, per rollout
LABELS = {
    "prompt_group": [f"{name}.{k}" for name in TASKS for k in range(QUESTIONS) for _ in range(SAMPLES)],
    "domain": [name for name in TASKS for _ in range(QUESTIONS * SAMPLES)],
}


def tower() -> Hierarchy:
    """Four levels that pass everything: its metrics say how the pull splits over them."""
    levels = strata("token trajectory prompt_group domain")
    kernels = uniform(), uniform(), proportional(count(levels[1]))
    pairs = zip(itertools.pairwise(levels), kernels, strict=True)
    return Hierarchy(
        name="open_tower",
        fibrations=[Fibration(a, b, kernel=k) for (a, b), k in pairs],
        gates={s: identity_gate() for s in levels},
        decomposition=log_ratio(scale=mass),
        objective=trajectory_mean(),
    )


class Answers:
    """One rollout: prompts on the left, answers on the right of `[rows, tokens]`, and what training reads."""

    def __init__(self, model, tokenizer, asked, draw: int) -> None:
        chats = [[{"role": "user", "content": f"{q.prompt}\nExplain each step, then give the answer."}] for q in asked]
        texts = [tokenizer.apply_chat_template(c, tokenize=False, add_generation_prompt=True) for c in chats]
        given = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left")
        torch.manual_seed(draw)
        with torch.no_grad():
            rows = model.generate(
                **given, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=TOKENS,
                num_return_sequences=SAMPLES, pad_token_id=tokenizer.pad_token_id,
            )  # fmt: skip
        prompt = given["input_ids"].shape[1]
        self.ids, self.answer = rows, rows[:, prompt:]
        stop = self.answer == tokenizer.eos_token_id
        self.mask = stop.cumsum(1) - stop.long() == 0  # the token that ends an answer counts
        seen = given["attention_mask"].repeat_interleave(SAMPLES, 0)
        self.seen = torch.cat([seen, self.mask.long()], 1)
        words = tokenizer.batch_decode(self.answer, skip_special_tokens=True)
        each = [str(q.entry["answer"]).lower() for q in asked for _ in range(SAMPLES)]
        said = [a in re.findall(r"\w+", w.lower()) for a, w in zip(each, words, strict=True)]
        self.rewards = torch.tensor(said).float() + 0.2 * stop.any(1).float()  # the answer occurs; it came to an end

    def log_probs(self, model, rows: slice) -> Tensor:
        ids, seen = self.ids[rows], self.seen[rows]
        at = (seen.cumsum(1) - 1).clamp(min=0)
        logits = model(ids[:, :-1], attention_mask=seen[:, :-1], position_ids=at[:, :-1]).logits
        logits = logits[:, -self.answer.shape[1] :]
        return logits.log_softmax(-1).gather(-1, self.answer[rows][..., None])[..., 0]


def advantages(kind: str, rewards: Tensor, baselines: list[float | None]) -> Tensor:
    """GRPO's, or rewards of different size less a running mean of their domain, over one deviation of the batch."""
    if kind == "centred":
        by_group = rewards.view(-1, SAMPLES)
        return ((by_group - by_group.mean(1, keepdim=True)) / (by_group.std(1, keepdim=True) + 1e-4)).flatten()
    by_domain = rewards.view(len(TASKS), -1) * torch.tensor(SCALES)[:, None]
    means = by_domain.mean(1).tolist()
    before = [m if b is None else b for m, b in zip(means, baselines, strict=True)]
    for d, m in enumerate(means):
        baselines[d] = before[d] * DECAY + m * (1 - DECAY)
    apart = by_domain - torch.tensor(before)[:, None]
    return (apart / (apart.std() + 1e-4)).flatten()


def shares(op, now: Tensor, answers: Answers, old: Tensor, given: Tensor) -> dict[str, float]:
    """Each level's share of the pull: what its means have of it, less what those of the next coarser level have."""
    metrics = op.coefficients(now, old, given, op.index(mask=answers.mask, **LABELS)).metrics
    found = [float(metrics[f"{s}/pull"]) for s in op.hierarchy.order]  # the coarsest level first
    return {str(s): fine - coarse for s, fine, coarse in zip(op.hierarchy.order, found, [0, *found], strict=False)}


def report() -> None:
    """A row for every epoch off policy, and which of them count: `grpo` gates between 3 and 10 % of the tokens."""
    columns = "run", "rollout, epoch", "gated, %", "correlation", "length", "design effect"
    columns += "trajectories, %", "domains, %", "centred: domains, %", "centred: groups, %", "counts"
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    for file in sorted((HERE / "results").glob("*_*_*.jsonl")):
        for d in map(json.loads, file.read_text().splitlines()):
            if d["epoch"]:
                running, centred = (d[f"pull_{kind}"] for kind in ("running", "centred"))
                shares = running["trajectory"], running["domain"], centred["domain"], centred["prompt_group"]
                counts = "yes" if 0.03 <= d["clipped"] <= 0.1 else "·"
                drift = f"{d['icc']:.2f}", f"{d['length']:.0f}", f"{d['design_effect']:.0f}"
                cells = f"{100 * d['clipped']:.1f}", *drift, *(f"{100 * share:.1f}" for share in shares), counts
                print(f"| {file.stem} | {d['rollout']}, {d['epoch']} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--advantages", choices=("centred", "running"), default="centred")
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--rollouts", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", action="store_true", help="print the table of all results, and run nothing")
    given = parser.parse_args()
    if given.report:
        report()
        return
    (HERE / "results").mkdir(exist_ok=True)
    log = HERE / "results" / f"{given.advantages}_{given.rate:g}_{given.seed}.jsonl"
    log.write_text("")
    model, tokenizer = load_model()
    model.requires_grad_(False).model.layers[-LAYERS:].requires_grad_(True)
    model.eval()
    adam = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=given.rate, weight_decay=0)
    asked = {name: questions(task, given.rollouts * QUESTIONS, given.seed, examples=1) for name, task in TASKS.items()}
    loss, measure = fibration.compile(fibration.load("grpo")), fibration.compile(tower())
    baselines: list[float | None] = [None] * len(TASKS)
    for k in range(given.rollouts):
        begun = time.time()
        mine = [q for name in TASKS for q in asked[name][k * QUESTIONS : (k + 1) * QUESTIONS]]
        answers = Answers(model, tokenizer, mine, draw=1000 * given.seed + k)
        sampled = time.time() - begun
        kinds = {kind: advantages(kind, answers.rewards, list(baselines)) for kind in ("centred", "running")}
        chosen = advantages(given.advantages, answers.rewards, baselines)
        index = loss.index(mask=answers.mask)
        parts = [slice(a, a + ROWS) for a in range(0, len(chosen), ROWS)]
        old = None
        for epoch in range(EPOCHS):
            begun = time.time()
            seen = []
            for rows in parts:
                now = answers.log_probs(model, rows)
                before = now.detach() if old is None else old[rows]
                loss.loss(now, before, chosen[rows], index.micro(range(len(chosen))[rows])).loss.backward()
                seen.append(now.detach())
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adam.step()
            adam.zero_grad()
            now = torch.cat(seen)
            old = now if old is None else old
            metrics = loss.coefficients(now, old, chosen, index).metrics
            line = {
                "rollout": k, "epoch": epoch, "reward": answers.rewards.view(len(TASKS), -1).mean(1).tolist(),
                "clipped": float(metrics["token/clipped"]), "kl": float(metrics["kl"]),
                **(correlation(now - old, answers.mask) if epoch else {}),
                **{f"pull_{kind}": shares(measure, now, answers, old, a) for kind, a in kinds.items()},
                "seconds": [sampled, time.time() - begun],
            }  # fmt: skip
            with log.open("a") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
