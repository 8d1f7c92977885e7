"""`fibration bench`: checks the settings, measures shape by shape, prints and writes the results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from fibration import pipeline
from fibration.bench import report
from fibration.bench.candidates import candidates
from fibration.bench.machine import describe_machine
from fibration.bench.measure import bandwidth, clock
from fibration.bench.rows import Measured, Plan, measure
from fibration.bench.shapes import DTYPES, KI, MI, Shape, parse_count, sweep
from fibration.configs.specs import as_specs
from fibration.errors import BackendError, BatchError
from fibration.files import check_writable_file, write_file
from fibration.language.hierarchy import Hierarchy
from fibration.language.report import BUDGET
from fibration.printing.progress import working
from fibration.printing.reports import load_quietly

DEFAULT = ("ppo", "gspo", "fiberpo", "fiberpo_domain", "fiberpo_modal", "fiberpo_crossed")
SWEPT = ("ppo", "fiberpo", "fiberpo_domain", "fiberpo_modal", "fiberpo_crossed")  # 1, 2, 4 deep; a tree, a quiver


@dataclass(frozen=True)
class Settings:
    """The command line's options. `tokens` are as written: `65536`, `64Ki`. Empty `backends` mean all."""

    specs: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    length: str = "512"
    sweep: bool = False
    device: str = "cpu"
    dtype: str = "float32"
    repeats: int | None = None  # default: 15, or 5 if quick
    seed: int = 0
    json: Path | None = None
    plot: Path | None = None
    quick: bool = False
    timeout: float = BUDGET  # of a hierarchy's laws

    @property
    def rounds(self) -> int:
        return self.repeats or (5 if self.quick else 15)

    @property
    def command(self) -> list[str]:
        """The command line that repeats the benchmark."""
        words = ["fibration", "bench", *self.specs]
        for option, values in (("--backend", self.backends), ("--tokens", self.tokens)):
            words += [w for v in values for w in (option, v)]
        words += ["--length", self.length, "--device", self.device, "--dtype", self.dtype]
        words += ["--repeats", str(self.rounds), "--seed", str(self.seed)]
        words += [f"--{flag}" for flag in ("sweep", "quick") if getattr(self, flag)]
        for option, path in (("--json", self.json), ("--plot", self.plot)):
            words += [option, str(path)] if path is not None else []
        return words


def bench(console: Console, settings: Settings) -> int:
    """Run `fibration bench`. Returns the exit code. Unusable settings raise before the first measurement."""
    hierarchies = check(settings)
    device = torch.device(settings.device)
    shapes = _shapes(settings)
    machine = describe_machine(device)
    stream = bandwidth(device, clock(device))
    report.emit_heading(console, settings.command, machine, stream, settings.rounds)
    plan = Plan(settings.rounds, settings.dtype, settings.device, settings.seed)
    backends = list(dict.fromkeys(pipeline.choose(b) for b in settings.backends)) or backends_for(settings.device)
    # torch.compile takes longer than everything else together, so a quick sweep leaves it out.
    compiled = not (settings.quick and settings.sweep)
    results: list[Measured] = []
    for hierarchy in hierarchies:
        rows = candidates(hierarchy, backends, compiled)
        for shape in shapes:
            with working(f"{hierarchy.name}: {shape}") as tell:

                def say(what: str, h: Hierarchy = hierarchy, s: Shape = shape, tell: Any = tell) -> None:
                    tell(f"{h.name}: {s}: {what}")

                # A fresh process takes seconds, and minutes if it compiles, so only one shape gets them.
                alone = not settings.quick and shape == (_centre(settings) if settings.sweep else shapes[0])
                results.append(measure(hierarchy, shape, rows, plan, alone, say))
            if not settings.sweep:
                report.emit_table(console, results[-1])
        if settings.sweep:
            report.emit_sweep(console, [m for m in results if m.hierarchy is hierarchy])
    report.emit_notes(console, results, settings.quick)
    if settings.json is not None:
        document = report.document(settings.command, settings.seed, settings.dtype, machine, stream, results)
        write_file(settings.json, document)
        console.print(f"written to {settings.json}")
    if settings.plot is not None:
        from fibration.bench.picture import draw

        draw(results, machine, settings.plot)
        console.print(f"drawn in {settings.plot}")
    return 0


def check(settings: Settings) -> list[Hierarchy]:
    """Check all settings and verify the hierarchies. Returns the hierarchies; raises for an unusable setting."""
    if settings.dtype not in DTYPES:
        raise BackendError(f"no dtype '{settings.dtype}'", required=f"one of {', '.join(DTYPES)}")
    if settings.device.partition(":")[0] not in ("cpu", "cuda"):
        raise BackendError(f"no device '{settings.device}'", required="cpu or cuda")
    if settings.device.startswith("cuda") and not torch.cuda.is_available():
        raise BackendError(
            f"device '{settings.device}' is not there",
            required="a GPU that this torch can use",
            found=f"torch {torch.__version__}",
            remedy="measure with --device cpu",
        )
    if settings.repeats is not None and settings.repeats < 1:
        raise BatchError(f"--repeats {settings.repeats}", required="a whole number from 1")
    for backend in settings.backends:
        pipeline.choose(backend)
    for text in (*settings.tokens, settings.length):
        parse_count(text)
    _check_outputs(settings)
    found = [load_quietly(spec) for spec in as_specs(settings.specs or _usual(settings))]
    with working("laws") as tell:
        for hierarchy in found:
            tell(f"laws of {hierarchy.name}")
            hierarchy.verify(settings.timeout).raise_for_status()
    return found


def _usual(settings: Settings) -> tuple[str, ...]:
    """The specs to measure if none is named."""
    return SWEPT if settings.sweep else DEFAULT


def _check_outputs(settings: Settings) -> None:
    check_writable_file(settings.json, ".json")
    check_writable_file(settings.plot, ".png")


def _shapes(settings: Settings) -> list[Shape]:
    tokens = [parse_count(t) for t in settings.tokens]
    length = parse_count(settings.length)
    if settings.sweep:
        return sweep(tokens, length, settings.quick).shapes()
    sizes = tokens or [64 * KI if settings.quick else MI]
    return [Shape(n, length, layout=layout) for n in sizes for layout in ("packed", "padded")]


def _centre(settings: Settings) -> Shape:
    return sweep([parse_count(t) for t in settings.tokens], parse_count(settings.length), settings.quick).centre


def backends_for(device: str) -> list[str]:
    """The backends to time on a device. Triton's interpreter is for debugging, so the CPU leaves triton out."""
    return [b for b in pipeline.BACKENDS if b == "torch" or (b == "triton") == device.startswith("cuda")]
