"""`fibration run`: verify, compile, gate a recorded batch, check it against the interpreter, and show what every level did."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from torch import Tensor

from fibration import formats
from fibration.compiler import Artifact, choose, generate
from fibration.compiler import compile as compile_operator
from fibration.errors import RolloutsError
from fibration.index import Index
from fibration.interpret import interpret
from fibration.metrics import levels
from fibration.operator import Coefficients, Levels, Operator
from fibration.report import Report
from fibration.rollouts import Rollouts, load_rollouts
from fibration.show import CHANNELS, REGIMES, unit
from fibration.spec import Hierarchy
from fibration.symbols import BATCH

AGREEMENT = 1e-9  # largest relative difference from the float64 interpreter; rounding explains about 1e-13


# ---------------------------------------------------------------- fibration compile


def generated(hierarchy: Hierarchy, backend: str) -> tuple[Artifact, Report]:
    """Source for a backend, and the report that allows it; raises LawError if a law does not hold."""
    chosen = choose(backend)
    report = hierarchy.verify()
    report.raise_for_status()
    return generate(hierarchy, chosen), report


def certificate(artifact: Artifact, report: Report, module: str) -> str:
    """What was proved of which spec, and of which source: the same on every machine with the same versions."""
    document = artifact.hierarchy.model_dump_json()
    content = {
        "format": "fibration.certificate/1",
        "spec": json.loads(document),
        "spec_sha256": sha256(document.encode()).hexdigest(),
        "backend": artifact.backend,
        "module": module,
        "source_sha256": sha256(artifact.source.encode()).hexdigest(),
        "report": report.to_dict(),
        "versions": {"python": platform.python_version(), **{p: metadata.version(p) for p in ("fibration", "sympy", "torch")}},
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


# ---------------------------------------------------------------- fibration run


@dataclass(frozen=True)
class Gated:
    """A recorded batch, and everything that an operator says about it. Per-token arrays are float64 `[N]`."""

    op: Operator
    index: Index
    rollouts: Rollouts
    parameters: Mapping[str, Any]
    log_ratio: Tensor
    advantages: Tensor
    ratio: Tensor
    result: Coefficients
    levels: Levels

    def inputs(self, program: str) -> dict[str, NDArray[np.float64]]:
        """What the operator gives to one of its programs, for the interpreter."""
        values = self.op._inputs(self.index, self.log_ratio, self.advantages, self.parameters, program)
        return {k: v.cpu().numpy() for k, v in values.items()}


def run(
    console: Console, hierarchy: Hierarchy, rollouts: Path | None, verify: Sequence[str], out: Path, parameters: Mapping[str, Any]
) -> int:
    """The whole of `fibration run`; the exit code."""
    say = _Steps(console)
    if verify:
        with say.step("verify", ", ".join(verify)) as tick:
            outcomes = formats.check(verify, tick)
        say.body(_verdicts(outcomes))
        for o in outcomes:
            if o.error:
                console.print(f"error: {o.error}", style="red", soft_wrap=True)
        if formats.exit_code(outcomes):
            return formats.exit_code(outcomes)

    with say.step("compile", hierarchy.name):
        op = compile_operator(hierarchy)
    say.body(formats.table(op.report))
    say.line(f"{op.backend} backend, {len(op.source.splitlines())} generated lines: fibration compile {hierarchy.name}")

    with say.step("read", str(rollouts or "the rollouts that come with fibration")):
        recorded = load_rollouts(rollouts)
        index = build_index(op, recorded)
    say.line(_batch(recorded, index))

    with say.step("gate", "every token, in float64"):
        gated = gate(op, index, recorded, parameters)
    say.body(_domains(gated))
    say.body(_regimes(gated))
    for line in _outcome(gated):
        say.body(line)

    with say.step("compare", "with the float64 interpreter of the IR"):
        differences = disagreement(gated)
    agrees = all(d <= AGREEMENT for d in differences.values())
    shown = ", ".join(f"{name} {d:.1e}" for name, d in differences.items())
    say.line(f"largest relative difference: {shown} ({'✓ at most' if agrees else '✗ more than'} {AGREEMENT:g})", "green" if agrees else "bold red")
    if not agrees:
        return 1

    with say.step("draw", str(out)) as tick:
        from fibration import plots

        pictures = plots.draw(gated, out, tick)
    for path, title in pictures:
        say.line(f"{path}: {title}")
    return 0


def build_index(op: Operator, rollouts: Rollouts) -> Index:
    """Who lies over whom, from the labels that recorded rollouts have; those that the hierarchy lacks are left out."""
    h = op.hierarchy
    known = {"prompt_group": rollouts.prompt_group_labels, "domain": rollouts.domain_labels}
    wanted = [s.name for s in h.chain if s.name not in (h.leaf.name, h.rows.name, BATCH)]
    for what, names in (("stratum", [n for n in wanted if n not in known]), ("attribute", list(h.attributes))):
        if names:
            raise RolloutsError(
                f"the rollouts say nothing about the {what} '{names[0]}' of '{h.name}'",
                required=f"labels for {', '.join(wanted) or 'nothing'}" if what == "stratum" else "no attributes",
                found=f"labels for {', '.join(known)}; every segment is one {h.rows}",
                remedy="from Python, op.index(...) takes any labels and attributes",
            )
    return op.index(offsets=rollouts.offsets, **{name: known[name] for name in wanted})


def gate(op: Operator, index: Index, rollouts: Rollouts, parameters: Mapping[str, Any]) -> Gated:
    """Run the operator on recorded log-probs, in float64 so that rounding can be told from error."""
    now, old, advantages = (torch.from_numpy(a).double() for a in (rollouts.log_probs, rollouts.old_log_probs, rollouts.advantages))
    log_ratio = now - old
    return Gated(
        op, index, rollouts, parameters, log_ratio, advantages,
        ratio=op.gate(log_ratio, index, parameters, advantages=advantages),
        result=op.coefficients(now, old, advantages, index, parameters),
        levels=op.levels(log_ratio, index, parameters, advantages=advantages),
    )  # fmt: skip


def disagreement(gated: Gated) -> dict[str, float]:
    """How far the compiled operator is from the float64 meaning of its IR, relative to the size of what is compared."""

    def oracle(program: str) -> dict[str, NDArray[np.float64]]:
        p = gated.op.programs[program]
        return interpret(p, gated.inputs(program), gated.index.sizes(p.edges))

    truth = {**oracle("gate"), **oracle("objective")}
    coefficients = gated.result.values.numpy()
    # J is a sum of terms of either sign and may cancel, so its error is measured against the sum of their sizes.
    terms = max(abs(float(truth["objective"][0])), float(np.abs(truth["coefficients"]).sum()))
    return {
        "ratio": _relative(gated.ratio.numpy() - truth["gated_ratio"], truth["gated_ratio"].max()),
        "coefficients": _relative(coefficients - truth["coefficients"], np.abs(truth["coefficients"]).max()),
        "objective": _relative(float(gated.result.objective) - truth["objective"], terms),
    }


def _relative(error: Any, size: float) -> float:
    largest = float(np.abs(error).max())
    return largest / size if size else largest


# ---------------------------------------------------------------- what is printed


class _Steps:
    """Numbered steps: a spinner while one runs on a terminal, one plain line each elsewhere."""

    def __init__(self, console: Console) -> None:
        self.console, self.number = console, 0

    @contextmanager
    def step(self, verb: str, what: str) -> Iterator[Any]:
        self.number += 1
        self.console.print(Text.assemble((f"{self.number} {verb}", "bold cyan"), f"  {what}"))
        with self.console.status(f"{verb} ...") as status:
            yield lambda detail: status.update(f"{verb} {detail} ...")

    def body(self, renderable: Any) -> None:
        self.console.print(Padding(renderable, (0, 0, 1, 2)))

    def line(self, text: str, style: str = "") -> None:
        self.console.print(Padding(Text(text, style), (0, 0, 0, 2)))


def _verdicts(outcomes: Sequence[formats.Outcome]) -> Table:
    """A line per hierarchy, its laws in order with a sign each; the whole story where a law does not hold."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for o in outcomes:
        if o.report is None:
            continue
        laws: dict[str, list[formats.Kind]] = {}
        for v in o.report.verdicts:
            laws.setdefault(v.law, []).append(formats.kind(v))
        line = Text()
        for law, kinds in laws.items():
            worst = max(kinds, key=list(formats.KINDS.values()).index)
            times = f" ×{len(kinds)}" if len(kinds) > 1 else ""
            line.append(worst.sign, worst.style).append(f"\u00a0{law}{times}  ".replace(" ×", "\u00a0×"))
        grid.add_row(Text(o.report.hierarchy.name, "bold"), line)
        if not o.report.ok:
            grid.add_row("", formats.table(o.report))
    signs = "  ".join(f"{k.sign} {k.word}" for k in formats.KINDS.values())
    grid.add_row("", Text(f"{signs}\nevery argument: fibration verify SPEC", "dim"))
    return grid


def _batch(rollouts: Rollouts, index: Index) -> str:
    model = rollouts.provenance.get("model", {})
    by = f", sampled by {model['name']}" if isinstance(model, Mapping) and "name" in model else ""
    used = " → ".join(f"{index.size[s.name]} {s}" for s in reversed(index.hierarchy.chain))
    return (
        f"{rollouts.n_tokens} tokens in {rollouts.n_trajectories} trajectories, {len(rollouts.prompt_groups)} prompt groups, "
        f"{len(rollouts.domains)} domains{by}\nelements: {used}"
    )


def _table(*columns: str, left: int = 1) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i < left else "right", no_wrap=i < left, vertical="bottom")
    return table


def _domains(g: Gated) -> Table:
    """Per domain of the rollouts, whether or not the hierarchy knows domains."""
    r, h = g.rollouts, g.op.hierarchy
    table = _table("domain", "groups", "traject.", "tokens", "mean\nreward", "mean\n|log r|", "tokens\nclipped", "𝒢(r)\nmin", "𝒢(r)\nmax")
    changed = np.zeros(r.n_tokens, bool)
    for (stratum, channel), residual in g.levels.residual.items():
        if stratum == h.leaf.name:
            changed |= (residual != g.levels.gated[stratum, channel]).numpy()
    row_domain = r.domain_of_group[r.prompt_group]
    token_domain = np.repeat(row_domain, np.diff(r.offsets))
    drift, ratio = g.log_ratio.abs().numpy(), g.ratio.numpy()
    everything = [(name, row_domain == i, token_domain == i) for i, name in enumerate(r.domains)]
    everything.append(("all", np.ones_like(row_domain, bool), np.ones_like(token_domain, bool)))
    for name, rows, tokens in everything:
        if not tokens.any():
            continue
        if name == "all":
            table.add_section()
        table.add_row(
            name, str(len(np.unique(r.prompt_group[rows]))), str(rows.sum()), str(tokens.sum()), f"{r.rewards[rows].mean():.2f}",
            f"{drift[tokens].mean():.4f}", f"{changed[tokens].mean():.0%}", f"{ratio[tokens].min():.3f}", f"{ratio[tokens].max():.3f}",
        )  # fmt: skip
    return table


def _regimes(g: Gated) -> Table:
    """Per level and, where the root stratum has few named elements, per element of it: drift and regimes."""
    h, metrics = g.op.hierarchy, g.result.metrics
    root = h.chain[0].name
    labels = [(f"[{root}={name}]", str(name), i) for i, name in enumerate(g.index.labels.get(root, ()))]
    named = [entry for entry in labels if any(m.endswith(entry[0]) for m in metrics)]  # only few elements are named
    keys = [k for k in REGIMES if k != "attenuated" or any("/attenuated" in m and float(v) > 0 for m, v in metrics.items())]
    table = _table("level", root if named else "", "elem.", "mean\ndrift", "max\ndrift", *(REGIMES[k].title.replace(" ", "\n") for k in keys), left=2)
    for stratum, channel in levels(h):
        key = f"{stratum}/{channel}" if channel else stratum
        counts = g.index.count(stratum, root)
        rows = [("", "all" if named else "", float(counts.sum()))]
        rows = [*((suffix, label, float(counts[i])) for suffix, label, i in named), *rows]
        for position, (suffix, label, count) in enumerate(rows):
            shares = [_share(float(metrics[f"{key}/{k}{suffix}"]), REGIMES[k].style) for k in keys]
            drifts = [f"{float(metrics[f'{key}/{d}{suffix}']):.4f}" for d in ("drift", "drift_max")]
            table.add_row(f"{stratum} {CHANNELS[channel]}" if not position else "", label, f"{count:.0f}", *drifts, *shares)
        table.add_section()
    return table


def _share(value: float, style: str) -> Text:
    if value == 0:
        return Text("·", "dim")
    return Text("<1%" if value < 0.005 else f"{value:.0%}" if value == 1 or value < 0.995 else ">99%", style)


def _outcome(g: Gated) -> Iterator[Any]:
    """The legend of the tables, then the numbers of the whole batch."""
    h, m = g.op.hierarchy, g.result.metrics
    split = " Channels + and − hold the tokens that became more and less likely." if len(h.decomposition.channels) > 1 else ""
    regimes = "; ".join(f"{r.title}: {r.meaning}" for k, r in REGIMES.items() if k != "attenuated")
    yield Text(
        f"Every level sees what its elements drift beyond the level above it: the residual, in {unit(h)}, here by its size.{split} "
        f"A gate does one thing to each element; shares of elements: {regimes}.",
        "dim",
    )
    grid = Table.grid(padding=(0, 2, 0, 0))
    x, root = g.log_ratio, h.objective
    before, after = torch.exp(x), g.ratio
    for name, value, meaning in (
        ("objective J", f"{float(g.result.objective):+.6f}", f"Σ μ·𝒢(r)·A over the batch, {root}"),
        ("ratio r", f"{float(before.min()):.3f} … {float(before.max()):.3f}", "before gating"),
        ("gated ratio 𝒢(r)", f"{float(m['ratio/min']):.3f} … {float(m['ratio/max']):.3f}", f"differs from r on {float((after.log() - x).abs().gt(1e-12).double().mean()):.0%} of the tokens"),
        ("TV estimate", f"{float(m['tv']):.5f}", "mean over trajectories of the mean of |r − 1|"),
        ("KL estimate", f"{float(m['kl']):.5f}", "mean over trajectories of the mean of −log r, in nats"),
    ):  # fmt: skip
        grid.add_row(Text(name, "bold"), value, Text(meaning, "dim"))
    yield grid
