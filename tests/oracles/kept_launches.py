"""Scenarios of calls whose launches are kept, on a driver that notes launches. `test_launches.py` runs this script.

It prints a JSON object: for each scenario "" or the traceback of what failed. `NAMES`, which it finds without importing
Triton, are the scenarios.
"""

from __future__ import annotations

import ast
import json
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = tuple(
    part.name
    for part in ast.parse(Path(__file__).read_text()).body
    if isinstance(part, ast.FunctionDef) and not part.name.startswith("_") and part.name != "main"
)
OFTEN = 4  # calls of one kind: the first is checked, the second keeps its launches


def same_launches_as_the_dispatch() -> None:
    """With aligned tensors and others, in any order, for every kind of call."""
    for name, lay_out in (("ppo", padded), ("fiberpo_domain", packed)):
        op, layout = _operator(name), lay_out(_operator(name), _batch(name))
        for what in ("loss", "coefficients", "advantages per row")[name != "ppo" :]:
            for _ in range(2):  # other tensors
                call = called(op, layout.index, layout.shape)[what]
                with _compared() as repeats:
                    for _ in range(OFTEN):
                        call()
                assert sum(repeats) >= OFTEN - 2, (name, what, repeats)


def unaligned_tensors_take_other_kernels() -> None:
    op, layout = _operator("ppo"), packed(_operator("ppo"), _batch("ppo"))
    size = 4 + layout.shape[0]
    buffers = [torch.linspace(-0.5, 0.25, size) for _ in range(3)]
    for first in (0, 1, 0, 1, 4, 1, 0):
        given = [b[first : first + layout.shape[0]] for b in buffers]
        with _compared() as repeats:
            for _ in range(2):
                op.coefficients(*given, layout.index, metrics=False)
    assert repeats == [True, True]
    with driver.noted() as noted:
        op.coefficients(buffers[0][:-4], buffers[1][1:-3], buffers[2][:-4], layout.index, metrics=False)
        op.coefficients(*(b[:-4] for b in buffers), layout.index, metrics=False)
    (one, _, other, _) = noted
    assert one.kernel == other.kernel and one.compiled != other.compiled


def the_current_stream_is_used_and_has_a_counter() -> None:
    op, layout = _operator("fiberpo_domain"), packed(_operator("fiberpo_domain"), _batch("fiberpo_domain"))
    call = called(op, layout.index, layout.shape)["coefficients"]
    call()
    call()
    counters = {}
    for stream in (7, 8, 7):
        driver.streams[0] = stream
        with driver.noted() as noted:
            call()
        assert {launch.stream for launch in noted} == {stream}
        found = {launch.arguments["counter"] for launch in noted if "counter" in launch.arguments}
        assert len(found) == 1 and counters.setdefault(stream, found) == found
    del driver.streams[0]
    assert counters[7] != counters[8]


def the_device_of_the_tensors_is_used() -> None:
    """Though another one is current."""

    class Elsewhere:
        """A tensor on the second device."""

        is_cuda = True
        device = torch.device("cpu")
        data_ptr = staticmethod(lambda: 1 << 20)
        get_device = staticmethod(lambda: 1)

    @contextmanager
    def device_of(tensor: Any) -> Iterator[None]:
        before, driver.device = driver.device, tensor.get_device()
        yield
        driver.device = before

    op, index, shape = _laid_out("ppo")
    call = called(op, index, shape)["coefficients"]
    real, used = launches.Launches.__call__, list[Any]()
    launches.Launches.__call__ = lambda self, holes: used.append((self, holes))
    call()
    launches.Launches.__call__ = real
    ((kept, holes),) = used
    tensor = Elsewhere()
    before, torch.cuda.device_of = torch.cuda.device_of, device_of
    try:
        kept(holes)
        kept(holes)
        with driver.noted() as noted:
            kept([(i, tensor) for i, _ in holes])
    finally:
        torch.cuda.device_of = before
    assert [(launch.device, launch.stream) for launch in noted] == [(1, STREAM)] * 2 and driver.device == 0


def launch_hooks_see_every_launch() -> None:
    op, index, shape = _laid_out("fiberpo_domain")
    call = called(op, index, shape)["coefficients"]
    seen: dict[str, list[Any]] = {"enter": [], "leave": []}
    enter, leave = (lambda metadata, word=word: seen[word].append(metadata.get()) for word in seen)
    call()
    call()
    knobs.runtime.launch_enter_hook.add(enter)
    knobs.runtime.launch_exit_hook.add(leave)
    with driver.noted() as noted:
        call()
    knobs.runtime.launch_enter_hook.remove(enter)
    knobs.runtime.launch_exit_hook.remove(leave)
    names = [launch.kernel for launch in noted]
    assert [metadata["name"] for metadata in seen["enter"]] == names and len(seen["leave"]) == len(names) == 5


def a_triton_without_the_form_keeps_its_dispatch() -> None:
    before, launches._is_compiled = launches._is_compiled, lambda kind: False
    try:
        op, index, shape = _laid_out("ppo")
        with _compared() as repeats:
            for _ in range(OFTEN):
                called(op, index, shape)["coefficients"]()
    finally:
        launches._is_compiled = before
    assert not any(repeats)


def functions_with_launches_of_their_own_keep_the_dispatch() -> None:
    """Sums in order use torch between their launches."""
    op, index, shape = _laid_out("fipo")
    with _compared() as repeats:
        for _ in range(OFTEN):
            called(op, index, shape)["coefficients"]()
    assert len(repeats) == OFTEN and not any(repeats), repeats


def several_threads_launch_their_own_tensors() -> None:
    op, index, shape = _laid_out("fiberpo_domain")
    failed: list[BaseException] = []
    start = threading.Barrier(4)

    def work() -> None:
        try:
            start.wait()
            for _ in range(20):
                called(op, index, shape)["coefficients"]()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    with _compared():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failed:
        raise failed[0]


def a_call_passes_few_functions() -> None:
    """Of Python, Triton's included: at most `LIMITS`. It keeps no results of earlier calls."""
    for name, kinds in LIMITS.items():
        op, index, shape = _laid_out(name)
        x, old, advantages = (torch.linspace(-0.5, 0.25, math.prod(shape)).reshape(shape) for _ in range(3))
        for metrics, most in kinds.items():
            for _ in range(2):
                op.coefficients(x, old, advantages, index, metrics=metrics)
            calls: list[str] = []

            def seen(frame: Any, event: str, _: object, calls: list[str] = calls) -> None:
                if event == "call" and "stand_in" not in frame.f_code.co_filename:
                    calls.append(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")

            sys.setprofile(seen)
            try:
                op.coefficients(x, old, advantages, index, metrics=metrics)
            finally:
                sys.setprofile(None)
            assert len(calls) <= most, (name, metrics, len(calls), calls)


# ------------------------------------------------------------


def _operator(name: str) -> Any:
    if name not in MADE:
        hierarchy = spec(name)
        made = pipeline.emit(hierarchy, "triton", programs(hierarchy))
        loaded = pipeline.load(made)
        MADE[name] = Operator(hierarchy, Report(hierarchy, ()), "triton", made.source, made.programs, loaded, None)
    return MADE[name]


def _batch(name: str) -> Any:
    return batch_for(spec(name), 3)


def _laid_out(name: str) -> tuple[Any, Any, tuple[int, ...]]:
    """An operator, a new index, and its shape."""
    layout = packed(_operator(name), _batch(name))
    return _operator(name), layout.index, layout.shape


@contextmanager
def _compared() -> Iterator[list[bool]]:
    """Whatever a generated function launches is compared with what Triton's dispatch launches for the same tensors.

    The list says for each whether it did without the dispatch.
    """
    repeats: list[bool] = []
    real = launches.Launches.__call__

    def compared(self: Any, holes: Any) -> None:
        with driver.noted() as expected:
            self.function(**self.arguments(holes))
        before = _dispatches()
        with driver.noted() as found:
            real(self, holes)
        repeats.append(_dispatches() == before)
        assert found and [_but_memory(one) for one in found] == [_but_memory(one) for one in expected]

    launches.Launches.__call__ = compared
    try:
        yield repeats
    finally:
        launches.Launches.__call__ = real


def _but_memory(launched: Any) -> Any:
    return replace(launched, arguments={n: v for n, v in launched.arguments.items() if n not in ("counter", "parts")})


def _dispatches() -> int:
    """How often this thread has called Triton's dispatch."""
    return getattr(COUNTS, "runs", 0)


def main() -> None:
    found = {}
    for name in sys.argv[1:] or NAMES:
        try:
            globals()[name]()
            found[name] = ""
        except Exception:  # the caller reports it
            found[name] = traceback.format_exc()
    print(json.dumps(found))


if __name__ == "__main__":
    import math
    from dataclasses import replace

    import torch
    from hierarchies.random_quivers import batch_for
    from support import packed, padded, programs, spec
    from triton import knobs
    from triton.runtime.jit import JITFunction

    from fibration import pipeline
    from fibration.backends.triton import launches, load
    from fibration.language.report import Report
    from fibration.runtime import devices
    from fibration.runtime.calling import Runner
    from fibration.runtime.operator import Operator
    from oracles.issued_operations import called
    from oracles.stand_in_driver import STREAM, installed

    driver = installed()
    devices.can_sync = lambda device: False
    load.Runner = lambda bindings, check, ready: Runner(bindings, lambda index: None, ready)  # tensors are on the CPU
    MADE: dict[str, Any] = {}
    LIMITS = {"ppo": {False: 52, True: 58}, "fiberpo_domain": {False: 75}}  # with triton 3.7
    COUNTS, run = threading.local(), JITFunction.run

    def dispatch(kernel: Any, *values: Any, **options: Any) -> Any:
        COUNTS.runs = _dispatches() + 1
        return run(kernel, *values, **options)

    JITFunction.run = dispatch
    main()
