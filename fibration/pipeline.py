"""The compiler: verify → lower → instrument → adjoint → optimise → schedule → emit → run."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module, metadata
from importlib.util import find_spec
from threading import Lock
from typing import Any

import torch

from fibration.backends.standalone import Export, alone
from fibration.cache import Recent
from fibration.compiler.adjoint import adjoint, drops_tokens
from fibration.compiler.advantages import advantages
from fibration.compiler.arguments import caller
from fibration.compiler.coupling import micro_batch
from fibration.compiler.diagnostics import (
    NO_TERMS,
    Terms,
    add_pulls,
    checked_terms,
    count_nonfinite,
    instrument,
    mark_nonfinite,
    received_by_tokens,
    report_of,
)
from fibration.compiler.fuse import sweeps
from fibration.compiler.ir import BATCH, Const, Input, Key
from fibration.compiler.lower import from_log_probs, from_log_ratios, lower
from fibration.compiler.optimise import optimise
from fibration.compiler.plan import Collective, Plan, Spread
from fibration.compiler.program import Program
from fibration.compiler.split import LIMIT, SUFFIX, Licence, split
from fibration.errors import BackendError, SpecError, suggest
from fibration.language.hierarchy import Hierarchy, fingerprint
from fibration.language.loading import shipped
from fibration.language.report import BUDGET, Report
from fibration.runtime.batch import Batch, Executable, Launcher, Outputs, Run, given_of, tensors_of
from fibration.runtime.calls import Backend
from fibration.runtime.operator import Operator

BACKENDS = ("torch", "c", "triton")
FUSED = ("c", "triton")
WRITTEN = "jax"  # `generate` writes modules of this backend, and no operator runs them
TITLES = {
    "evaluate": "J, its coefficients, and the diagnostics of every level.",
    "objective": "J, which training maximises, and its coefficients ∂J/∂log π.",
    "gate": "The gated ratios.",
    "gate_adjoint": "The transpose of the gate's Jacobian, applied to `cotangent`.",
    "levels": "The residual and the gated residual of every level.",
    "micro": "The share of J of a micro-batch, and its coefficients, from the frozen sums of the whole step.",
    "prologue": "The frozen sums of a step, which its micro-batches read.",
    "advantages": "Advantages from rewards, per token.",
    "advantages_of_rows": "Advantages from rewards, per row.",
}
FURTHER = ("gate", "gate_adjoint", "levels")  # no training needs these
log = logging.getLogger("fibration")


@dataclass(frozen=True)
class Artifact:
    """Generated source for one backend, and what it was generated from."""

    hierarchy: Hierarchy
    backend: str
    source: str
    programs: Mapping[str, Program]
    plans: Mapping[str, Any]  # a Schedule or a Plan per program
    licence: Licence | None = None  # for the programs that split exponentials
    about: str = ""  # what the header says, in place of the declaration


NAMES = """\
names of values, of a level X and a channel (_plus, _minus)
  s_X         the density of an element of X by its mass: a mean over tokens, where the formulas above have sums
  residual_X  what is left of it without the means of coarser levels
  gated_X     what the gate of X makes of that, by the mass too
  down_X      the sum of what the gates of X and of coarser levels make
  d_...       the derivative of J by a value"""


def compile(hierarchy: Hierarchy, backend: str = "auto", timeout: float | None = BUDGET) -> Operator:
    """Returns the operator of a hierarchy, after verifying it.

    - `backend`: "torch", "c", "triton", or "auto" for the fastest on this machine. The log and `operator.backend` name
      it. With "auto" on a machine with a GPU, batches on the CPU run with C, or with torch if there is no C compiler.
    - `timeout`: seconds for the proofs, as in `hierarchy.verify`.

    Raises LawError if a law is refuted or undecided, and BackendError if the backend does not work here.
    """
    if not isinstance(hierarchy, Hierarchy):
        raise SpecError(
            f"cannot compile {hierarchy!r}", required="a Hierarchy", remedy="fibration.compile(fibration.load(SPEC))"
        )
    chosen = choose(backend)  # before the proofs: a wrong name fails at once
    report = hierarchy.verify(timeout)
    report.raise_for_status()
    artifact = generate(hierarchy, chosen, report)
    everywhere = backend == "auto" and chosen == "triton"
    again = partial(compile, backend="auto" if everywhere else chosen, timeout=timeout)
    on_cpu = partial(_on_cpu, hierarchy, report) if everywhere else None
    given = hierarchy, report, chosen, artifact.source, artifact.programs
    return Operator(*given, load(artifact), again, on_cpu)


def _on_cpu(hierarchy: Hierarchy, report: Report) -> Backend:
    """The backend for batches on the CPU, on a machine with a GPU."""
    name, why = best(gpu=False)
    log.info("fibration: backend '%s' for batches on the CPU (%s)", name, why)
    return Backend(name, load(generate(hierarchy, name, report)))


VERSION = metadata.version("fibration")  # read once, as it searches the installed packages
ARTIFACTS: Recent[Artifact] = Recent(32)


def generate(hierarchy: Hierarchy, backend: str, report: Report | None = None) -> Artifact:
    """Returns source for one backend from a hierarchy that verifies. Recent results serve equal hierarchies again.

    `report`: the hierarchy's. Its facts allow programs with fewer sweeps, for parameters that they are valid for.
    """

    def make() -> Artifact:
        made = programs(hierarchy)
        found = None if report is None or backend in ("torch", WRITTEN) else bounded(hierarchy, made, report)
        if found is None:
            return emit(hierarchy, backend, made)
        more, licence = found
        return replace(emit(hierarchy, backend, {**made, **more}), licence=licence)

    key = fingerprint(hierarchy)
    return _printed(ARTIFACTS.get(f"{backend} {report is not None} {key}", make) if key else make())


def standalone(hierarchy: Hierarchy, backend: str, further: bool = False, about: str = "") -> Artifact:
    """Returns source for one backend with what training needs, or, with `further`, all functions of an operator.

    `about`: what its header says, in place of the declaration.
    """
    made = {name: p for name, p in programs(hierarchy).items() if further or name not in FURTHER}
    return emit(hierarchy, backend, made, about=about and f"{about}\n\n{NAMES}")


def _printed(artifact: Artifact) -> Artifact:
    if os.environ.get("FIBRATION_PRINT") == "1":
        print(artifact.source, file=sys.stderr)
    return artifact


def programs(hierarchy: Hierarchy) -> dict[str, Program]:
    """Returns every program of an operator, after optimisation. All backends get the same programs."""

    def read(name: str, program: Program) -> Program:
        return from_log_probs(program) if name in ("evaluate", "objective") else from_log_ratios(program)

    found = {name: optimise(read(name, program)) for name, program in build(hierarchy).items()}
    return {**found, **micro_batch(found["objective"], hierarchy)}


def bounded(
    hierarchy: Hierarchy, made: Mapping[str, Program], report: Report
) -> tuple[dict[str, Program], Licence] | None:
    """Returns programs with split exponentials, and what licenses them; None if they save no sweep, or without facts.

    A loss has all of them or none, so that coefficients have the same bits with metrics and without.
    """
    found = {name: optimise(split(made[name])) for name in ("evaluate", "objective", "micro") if name in made}
    before, after = (len(sweeps(p["objective"], hierarchy.rows.name).sweeps) for p in (made, found))
    licence = Licence.of(report.facts, len(hierarchy.leaves)) if after < before else None
    return None if licence is None else ({f"{name}{SUFFIX}": p for name, p in found.items()}, licence)


def emit(
    hierarchy: Hierarchy, backend: str, programs: Mapping[str, Program], spread: Spread | None = None, about: str = ""
) -> Artifact:
    """Returns source for one backend from optimised programs. `spread`: how batches lie on ranks, if they do."""
    emitter = import_module(f"fibration.backends.{backend}.emit")
    plans: dict[str, Any] = {}
    for name, program in programs.items():  # `evaluate` comes before `objective`
        whole = plans.get(name.replace("objective", "evaluate"))
        loss = programs.get(name.replace("evaluate", "objective"))
        if backend not in FUSED or spread is not None or loss is None:
            plans[name] = emitter.plan(program, hierarchy.rows.name, spread)
        elif whole is None:
            metrics = program.outputs.keys() - loss.outputs.keys()
            plans[name] = emitter.plan(program, hierarchy.rows.name, metrics=metrics)
        else:  # the same functions compute J with metrics and without
            plans[name] = whole.without_metrics()
    more = (caller(hierarchy),) if backend == WRITTEN else ()  # modules of the others get vectors and layouts alone
    titles = {name: title(name) for name in programs}
    source = emitter.emit(header(hierarchy, backend, programs, about), plans, titles, *more)
    return Artifact(hierarchy, backend, source, programs, plans, about=about)


def plan(hierarchy: Hierarchy, program: str, ranks: str = "") -> Plan:
    """Returns the plan of a program alone, for printing. Compiled files take `evaluate`'s stages for `objective`.

    `ranks`: "" for one process; for a batch spread over ranks, whether its rows are "whole" or "cut".
    """
    for what, given, known in (
        ("program", program.removesuffix(SUFFIX), tuple(TITLES)),
        ("way to lie on ranks", ranks, ("", "whole", "cut")),
    ):
        if given not in known:
            raise BackendError(f"no {what} '{given}'", required=f"one of {', '.join(map(repr, known))}")
    made = programs(hierarchy)
    if program.endswith(SUFFIX):
        found = bounded(hierarchy, made, hierarchy.verify())
        made |= found[0] if found is not None else {}
    if program not in made:
        raise BackendError(f"'{hierarchy.name}' has no program '{program}'", required=f"one of {', '.join(made)}")
    spread = spread_of(hierarchy, ranks == "cut") if ranks else None
    return sweeps(made[program], hierarchy.rows.name, spread=spread)


def build(hierarchy: Hierarchy) -> dict[str, Program]:
    """Returns every program of an operator, before optimisation."""
    base = lower(hierarchy)
    reported = report_of(hierarchy)

    def per_leaf(word: str, *kinds: str) -> dict[Key, tuple[Input, ...]]:
        return {base.part(word, leaf): tuple(base.token_input(k, leaf) for k in kinds) for leaf in base.leaves}

    seeds = {key: cotangent for key, (cotangent,) in per_leaf("gated_ratio", "cotangent").items()}
    transposed = adjoint(base, seeds, per_leaf("log_ratio_gradient", "log_ratio"))
    moving = per_leaf("coefficients", "log_ratio", "log_prob")  # both depend on log π
    seed = {Key("objective"): Const(1.0, BATCH)}
    wanted = {**moving, **received_by_tokens(base, hierarchy)}
    evaluate = adjoint(instrument(base, reported, hierarchy), seed, wanted, drops_tokens(hierarchy))
    evaluate = add_pulls(evaluate, hierarchy)

    def only(program: Program, *words: str) -> Program:
        return replace(program, outputs={k: v for k, v in program.outputs.items() if k.word in words})

    def checked(program: Program, terms: Terms = NO_TERMS) -> Program:
        return count_nonfinite(mark_nonfinite(program, hierarchy, terms), hierarchy, terms)

    terms = checked_terms(base)
    if any(p.has_root for p in hierarchy.penalties.values()):
        slopes = {leaf: evaluate.outputs[base.part("coefficients", leaf)] for leaf in base.leaves}
        terms = {leaf: (*terms[leaf], slope) for leaf, slope in slopes.items()}
    return {
        "evaluate": checked(evaluate, terms),
        "objective": checked(only(evaluate, "objective", "coefficients", "penalty", "penalty_sum"), terms),
        "gate": checked(only(base, "gated_ratio")),
        "gate_adjoint": mark_nonfinite(only(transposed, "log_ratio_gradient"), hierarchy),
        "levels": count_nonfinite(only(base, "residual", "gated"), hierarchy),  # figures read it as formulas too
        **advantages(hierarchy),
    }


def title(program: str) -> str:
    """Returns the first line of the comment on a generated function."""
    name = program.removesuffix(SUFFIX)
    return TITLES[name] + (f" Its levels add at most {LIMIT:g} to log r." if name != program else "")


def choose(backend: str, written: bool = False) -> str:
    """Returns the name of a backend. `written`: whether one that only writes files may be chosen."""
    if backend == WRITTEN:
        if written:
            return backend
        raise BackendError(
            f"the {backend} backend writes modules, and has no operator: tensors of an operator are torch's",
            required=f"one of auto, {', '.join(BACKENDS)}",
            remedy=f"fibration compile SPEC --backend {backend} -o DIR, and import what it writes",
        )
    if backend == "auto":
        backend, why = best()
        log.info("fibration: backend '%s' (%s)", backend, why)
        return backend
    if backend not in BACKENDS:
        known = ("auto", *BACKENDS, *[WRITTEN] * written)
        remedy = suggest(str(backend).lower(), known) or "auto, which takes the fastest of this machine"
        raise BackendError(f"no backend '{backend}'", required=f"one of {', '.join(known)}", remedy=remedy)
    return backend


def best(gpu: bool = True) -> tuple[str, str]:
    """Returns the fastest backend of this machine, with or without its GPU, and the reason."""
    if gpu and torch.cuda.is_available() and find_spec("triton"):
        return "triton", f"for {torch.cuda.get_device_name()}"
    try:
        return "c", f"compiled by {import_module('fibration.backends.c.build').compiler()[0]}; no device with Triton"
    except BackendError as error:
        if os.environ.get("CC"):  # the user named a compiler
            log.warning("fibration: %s; the torch backend is many times slower", error.what)
        return "torch", f"no device with Triton, and {error.what}"


def header(hierarchy: Hierarchy, backend: str, programs: Mapping[str, Program], about: str = "") -> str:
    """Returns the comment at the top of generated code. Equal inputs give equal text in every run."""
    spec = hierarchy.model_dump_json()
    ir = "\n".join(str(p) for p in programs.values())
    spec_of = hierarchy.name if hierarchy.name in shipped() else "SPEC"
    lines = [
        f"{hierarchy.name}: generated by fibration {VERSION}, backend {backend}. Do not edit.",
        f"reproduce: fibration compile {spec_of} --backend {backend}{' --functions' * ('gate' in programs)}",
        f"spec {digest(spec)}   ir {digest(ir)}   python {platform.python_version_tuple()[0]}",
        "",
        *(about or str(hierarchy)).splitlines(),
    ]
    return "\n".join(f"# {line}".rstrip() for line in lines)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def export(artifact: Artifact, arch: str | None = None) -> Export:
    """Returns the files to use without this library, compiled for `arch` if the backend can."""
    top = header(artifact.hierarchy, artifact.backend, artifact.programs, artifact.about)
    given = artifact.hierarchy.name, top, artifact.source, artifact.plans, {n: title(n) for n in artifact.plans}, arch
    if artifact.backend in ("torch", WRITTEN):
        return alone(artifact.backend, *given)
    return import_module(f"fibration.backends.{artifact.backend}.export").export(*given)  # type: ignore[no-any-return]


def load(artifact: Artifact) -> Executable:
    """Returns the generated functions, ready to call."""
    return _Loaded(artifact)


class _Loaded:
    """The generated functions. Functions for batches spread over ranks are generated on first use."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self._alone = _run(artifact)
        self._spread: dict[bool, tuple[Artifact, Run]] = {}
        self._lock = Lock()  # ranks may be threads

    def choose(self, program: str, batch: Batch) -> str:
        licence, faster = self.artifact.licence, f"{program}{SUFFIX}"
        allowed = licence is not None and faster in self.artifact.programs and licence.holds(batch.largest)
        return faster if allowed else program

    def prepare(self, program: str, batch: Batch) -> Launcher:
        return self._alone.prepare(program, batch)

    def __call__(self, program: str, batch: Batch) -> Outputs:
        ranks = batch.index.ranks
        if ranks is None:
            return self.prepare(program, batch)(tensors_of(batch), given_of(batch))
        return self._made(ranks.cut)[1](program, batch)

    def collectives(self, program: str, cut: bool) -> tuple[Collective, ...]:
        return self._made(cut)[0].plans[program].collectives  # type: ignore[no-any-return]

    def _made(self, cut: bool) -> tuple[Artifact, Run]:
        with self._lock:
            if cut not in self._spread:
                a = self.artifact
                made = _printed(emit(a.hierarchy, a.backend, a.programs, spread_of(a.hierarchy, cut)))
                self._spread[cut] = made, _run(made)
        return self._spread[cut]


def _run(artifact: Artifact) -> Run:
    module = import_module(f"fibration.backends.{artifact.backend}.load")
    return module.load(artifact.hierarchy.name, artifact.source, artifact.plans)  # type: ignore[no-any-return]


def spread_of(hierarchy: Hierarchy, cut: bool) -> Spread:
    """Returns how a batch is spread over ranks. With whole rows, a row's tokens and turns are on its rank."""
    if cut:
        return Spread()
    over = (s.name for s in hierarchy.order if hierarchy.rows in hierarchy.coarser(s) and s not in hierarchy.leaves)
    return Spread(frozenset({hierarchy.rows.name, *over}))
