"""`fibration bench`: what was asked for is checked, measured shape by shape, printed, and written."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from fibration import pipeline
from fibration.bench import laws, ranks, report, small, words
from fibration.bench.candidates import candidates
from fibration.bench.machine import describe_machine
from fibration.bench.measure import bandwidth, clock
from fibration.bench.rows import Measured, Plan, measure
from fibration.bench.shapes import DTYPES, KI, MI, Shape, parse_count, sweep
from fibration.errors import BackendError, BatchError
from fibration.files import check_writable_file, write_file
from fibration.language.hierarchy import Hierarchy
from fibration.language.report import BUDGET
from fibration.printing.progress import working
from fibration.printing.reports import load_quietly

DEFAULT = ("ppo", "gspo", "fiberpo", "fiberpo_domain", "fiberpo_modal", "fiberpo_crossed")
SPREAD = ("fiberpo", "fiberpo_domain")  # two levels over rows, and four
WORDED = ("grpo", "fiberpo")  # the cheapest loss, and one of two levels
FEW = ("ppo", "grpo", "gspo", "fiberpo", "fiberpo_domain")  # 1, 2 and 4 deep
SWEPT = ("ppo", "fiberpo", "fiberpo_domain", "fiberpo_modal", "fiberpo_crossed")  # 1, 2, 4 deep; a tree, a quiver


@dataclass(frozen=True)
class Settings:
    """What the command line says. `tokens` are as written: `65536`, `64Ki`. Empty `backends` are all there are."""

    specs: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    length: str = "512"
    sweep: bool = False
    device: str = "cpu"
    dtype: str = "float32"
    repeats: int | None = None  # 15, or 5 where quick
    seed: int = 0
    json: Path | None = None
    plot: Path | None = None
    quick: bool = False
    laws: bool = False
    ranks: bool = False
    words: bool = False
    small: bool = False
    timeout: float = BUDGET  # of a hierarchy's laws and facts

    @property
    def rounds(self) -> int:
        if self.laws:
            return self.repeats or (1 if self.quick else 3)
        if self.small:
            return self.repeats or (21 if self.quick else 301)
        return self.repeats or (5 if self.quick else 15)

    @property
    def command(self) -> list[str]:
        """The words that do the same again."""
        words = ["fibration", "bench", *self.specs]
        if self.laws:
            words += ["--laws", "--timeout", f"{self.timeout:g}", "--repeats", str(self.rounds)]
            words += ["--quick"] if self.quick else []
            for option, path in (("--json", self.json), ("--plot", self.plot)):
                words += [option, str(path)] if path is not None else []
            return words
        for option, values in (("--backend", self.backends), ("--tokens", self.tokens)):
            words += [w for v in values for w in (option, v)]
        words += ["--length", self.length, "--device", self.device, "--dtype", self.dtype]
        words += ["--repeats", str(self.rounds), "--seed", str(self.seed)]
        words += [f"--{flag}" for flag in ("sweep", "ranks", "words", "small", "quick") if getattr(self, flag)]
        for option, path in (("--json", self.json), ("--plot", self.plot)):
            words += [option, str(path)] if path is not None else []
        return words


def bench(console: Console, settings: Settings) -> int:
    """The whole of `fibration bench`; the exit code. Raises before the first measurement if anything is unusable."""
    hierarchies = check(settings)
    device = torch.device(settings.device)
    shapes = _shapes(settings)
    machine = describe_machine(device)
    stream = bandwidth(device, clock(device))
    report.emit_heading(console, settings.command, machine, stream, settings.rounds)
    plan = Plan(settings.rounds, settings.dtype, settings.device, settings.seed)
    backends = list(dict.fromkeys(pipeline.choose(b) for b in settings.backends)) or backends_for(settings.device)
    # torch.compile takes longer than everything else together: a quick sweep does without it.
    compiled = not (settings.quick and settings.sweep)
    results: list[Measured] = []
    for hierarchy in hierarchies:
        rows = candidates(hierarchy, backends, compiled)
        for shape in shapes:
            with working(f"{hierarchy.name}: {shape}") as tell:

                def say(what: str, h: Hierarchy = hierarchy, s: Shape = shape, tell: Any = tell) -> None:
                    tell(f"{h.name}: {s}: {what}")

                # Fresh processes cost seconds each, and minutes where they compile: one shape has to do.
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
    """The hierarchies, verified; raises for whatever cannot be used, before anything is measured."""
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
    found = [load_quietly(spec) for spec in settings.specs or _usual(settings)]
    with working("laws") as tell:
        for hierarchy in found:
            tell(f"laws of {hierarchy.name}")
            hierarchy.verify(settings.timeout).raise_for_status()
    return found


def bench_laws(console: Console, settings: Settings) -> int:
    """The whole of `fibration bench --laws`; the exit code."""
    if settings.backends or settings.tokens or settings.sweep:
        raise BackendError("--laws measures no batches", remedy="leave --backend, --tokens and --sweep out")
    from fibration.bench import law_report

    _check_outputs(settings)
    found = list(laws.cases(settings.specs, settings.quick))
    machine = describe_machine(torch.device("cpu"))
    console.print(f"{' '.join(settings.command)}\n{machine['processor']}, {machine['cores']} cores")
    with working("laws") as tell:
        results = laws.measure(found, settings.rounds, settings.timeout, tell)
    law_report.emit_table(console, results)
    if settings.json is not None:
        document = laws.document(settings.command, machine, settings.timeout, results)
        write_file(settings.json, json.dumps(document, indent=2) + "\n")
        console.print(f"written to {settings.json}")
    if settings.plot is not None:
        law_report.draw(results, machine, settings.timeout, settings.plot)
        console.print(f"drawn in {settings.plot}")
    return 0


def bench_ranks(console: Console, settings: Settings) -> int:
    """The whole of `fibration bench --ranks`; the exit code."""
    if settings.sweep or settings.device != "cpu" or len(settings.tokens) > 1:
        raise BackendError(
            "--ranks measures one batch on processes of this machine",
            remedy="leave --sweep and --device out, and name --tokens once",
        )
    from fibration.bench import rank_report

    hierarchies = check(settings)
    shape = Shape(
        parse_count(*(settings.tokens or ("64Ki" if settings.quick else "4Mi",))), parse_count(settings.length)
    )
    machine, paper = describe_machine(torch.device("cpu")), ranks.Paper()
    console.print(f"{' '.join(settings.command)}\n{machine['processor']}, {machine['cores']} cores; {shape}\n")
    results: list[ranks.Measured] = []
    sizes = ranks.SIZES[:2] if settings.quick else ranks.SIZES
    for hierarchy in hierarchies:
        for backend in dict.fromkeys(pipeline.choose(b) for b in settings.backends or ("auto",)):
            with working(hierarchy.name) as tell:

                def say(what: str, h: Hierarchy = hierarchy, tell: Any = tell) -> None:
                    tell(f"{h.name}: {what}")

                given = hierarchy, backend, shape, settings.rounds, sizes, settings.dtype, settings.seed
                results += ranks.measure(*given, say)
    rank_report.emit_tables(console, results, paper)
    if settings.json is not None:
        document = ranks.document(settings.command, machine, shape, paper, results)
        write_file(settings.json, json.dumps(document, indent=2) + "\n")
        console.print(f"written to {settings.json}")
    if settings.plot is not None:
        rank_report.draw(results, machine, shape, settings.plot)
        console.print(f"drawn in {settings.plot}")
    return 0


def bench_words(console: Console, settings: Settings) -> int:
    """The whole of `fibration bench --words`; the exit code."""
    if settings.sweep or settings.plot is not None or len(settings.tokens) > 1:
        raise BackendError(
            "--words measures one batch, and draws nothing",
            remedy="leave --sweep and --plot out, and name --tokens once",
        )
    hierarchies = check(settings)
    shape = Shape(
        parse_count(*(settings.tokens or ("64Ki" if settings.quick else "1Mi",))), parse_count(settings.length)
    )
    machine = describe_machine(torch.device(settings.device))
    console.print(f"{' '.join(settings.command)}\n{machine['processor']}, {machine['cores']} cores; {shape}\n")
    results: list[words.Measured] = []
    for hierarchy in hierarchies:
        for backend in dict.fromkeys(pipeline.choose(b) for b in settings.backends or ("auto",)):
            with working(hierarchy.name):
                given = hierarchy, backend, shape, settings.rounds, settings.dtype, settings.device, settings.seed
                results += words.measure(*given)
    words.emit_tables(console, results)
    if settings.json is not None:
        document = words.document(settings.command, machine, shape, results)
        write_file(settings.json, json.dumps(document, indent=2) + "\n")
        console.print(f"written to {settings.json}")
    return 0


def bench_small(console: Console, settings: Settings) -> int:
    """The whole of `fibration bench --small`; the exit code."""
    if settings.sweep or settings.plot is not None or len(settings.tokens) > 1:
        raise BackendError(
            "--small measures one batch, and draws nothing",
            remedy="leave --sweep and --plot out, and name --tokens once",
        )
    hierarchies = check(settings)
    tokens, length = parse_count(*(settings.tokens or ("8Ki",))), parse_count(settings.length)
    machine = describe_machine(torch.device(settings.device))
    console.print(f"{' '.join(settings.command)}\n{machine['processor']}, {machine['cores']} cores\n")
    backends = list(dict.fromkeys(pipeline.choose(b) for b in settings.backends or ("auto",)))
    plan = Plan(settings.rounds, settings.dtype, settings.device, settings.seed)
    results: list[small.OnThreads] = []
    for hierarchy in hierarchies:
        with working(hierarchy.name):
            results += small.measure_small(hierarchy, backends, tokens, length, plan)
    small.emit_tables(console, results, backends)
    if settings.json is not None:
        document = small.document(settings.command, machine, results)
        write_file(settings.json, json.dumps(document, indent=1) + "\n")
        console.print(f"written to {settings.json}")
    return 0


def _usual(settings: Settings) -> tuple[str, ...]:
    """What is measured where no spec is named."""
    if settings.sweep:
        return SWEPT
    return SPREAD if settings.ranks else WORDED if settings.words else FEW if settings.small else DEFAULT


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
    """The backends that can be timed on a device; Triton's interpreter is for debugging, and times nothing."""
    return [b for b in pipeline.BACKENDS if b == "torch" or (b == "triton") == device.startswith("cuda")]
