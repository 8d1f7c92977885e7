"""The time limit of verification: it ends endless work, every report names it, and no state is left behind.

What never ends here does so by construction, and it is the clock that it moves on: no test depends on how fast a
machine is.
"""

import itertools
import json
import math
import random
import subprocess
import sys
import threading
import time as real
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction

import mpmath
import pytest
import sympy
from support import invoke

import fibration
from fibration import (
    Fibration,
    Gate,
    Hierarchy,
    LawError,
    MarkovKernel,
    ParameterError,
    clip_gate,
    count,
    exp,
    log,
    log_prob,
    policies,
    residual,
    strata,
    token_mean,
)
from fibration.cache import NOTES, Recent
from fibration.language.atoms import Parameter
from fibration.language.exact import transcendental
from fibration.language.gates import log_ratio
from fibration.language.sympy_bridge import cancelled
from fibration.laws import LAWS, budget, catalogue, kept
from fibration.laws import verify as module
from fibration.laws.budget import Budget, Stopped
from fibration.laws.facts import certified
from fibration.laws.facts.certified import NAMES
from fibration.laws.law import proved
from fibration.printing.law_table import marks

LATER = tuple(LAWS)[list(LAWS).index("identity") + 1 :]
(token,) = strata("token")
SOURCES = kept.sources()


class Clock:
    """It stands still, but where time is spent."""

    now = 0.0

    def __call__(self):
        return self.now


CLOCK = Clock()


@pytest.fixture(autouse=True)
def _clock(monkeypatch):
    monkeypatch.setattr(budget, "monotonic", CLOCK)
    monkeypatch.setattr(module, "monotonic", CLOCK)


def spend(seconds):
    CLOCK.now += seconds


def never(subject=None, seconds=100):
    """One decision, and then none for ever."""
    yield proved("gate on token", "is decided before the time is out")
    spend(seconds)
    for _ in itertools.count():
        pass


def deaf(subject=None):
    """What swallows an exception as often as it may: three times."""
    for seconds in (100, 0, 0):
        with suppress(Stopped):
            yield from never(subject, seconds)
    yield from never(subject, 0)


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Nothing is in memory, and verdicts may be kept on disk in a folder of this test's own."""
    for name in ("VERDICTS", "FACTS", "SUBJECTS"):
        monkeypatch.setattr(getattr(module, name), "_recent", Recent(256))
    monkeypatch.setenv("FIBRATION_CACHE", str(tmp_path))
    monkeypatch.setattr(kept, "SOURCES", SOURCES)
    return tmp_path


def endless(monkeypatch, law="identity", decisions=never):
    monkeypatch.setitem(LAWS, law, replace(LAWS[law], decisions=decisions))
    monkeypatch.setattr(catalogue, "OURS", tuple(LAWS.items()))  # as one of ours, it may be kept


def one(**more):
    return Hierarchy(
        name="one", gates={token: clip_gate(Parameter("C"))}, decomposition=log_ratio(), objective=token_mean(), **more
    )


# ---------------------------------------------------------------- what a report says


@pytest.mark.parametrize("decisions", [never, deaf])
def test_an_endless_law_is_out_of_time_and_leaves_no_thread(asked, monkeypatch, decisions):
    endless(monkeypatch, decisions=decisions)
    threads = set(threading.enumerate())
    found = one().verify()
    assert not set(threading.enumerate()) - threads  # it is stopped however often it swallows the exception
    assert not found.ok
    before = {v.status for v in found.verdicts if v.subject == "gate on token" and v.law == "identity"}
    assert before == {"proved"}  # what was decided is not lost
    late = [v for v in found.verdicts if v.out_of_time]
    assert [v.law for v in late] == ["identity", *LATER]
    assert {v.law for v in found.verdicts} == {*LAWS} - {"markov", "reflecting", "coherent"}  # that do not apply
    assert {v.status for v in late} == {"undecided"}
    assert late[0].found.startswith("out of time after 60 s, of which 100 s")
    assert "verify(timeout=600)" in late[0].remedy and "--timeout 600" in late[0].remedy
    assert {v.found for v in late[1:]} == {"out of time: not asked"}
    assert [m.word for m in marks(found)][-len(late) :] == ["undecided"] * len(late)
    assert found.causes == (late[0],)
    assert found.so_too(late[0]) == ", ".join(LATER)
    with pytest.raises(LawError, match=r"the law 'identity'(.|\n)*out of time") as refusal:
        found.raise_for_status()
    assert refusal.value.report is found


def test_facts_out_of_time_are_reported_as_not_certified(asked, monkeypatch):
    endless(monkeypatch)
    values = {(f.name, f.subject, f.value) for f in one().verify().facts}
    assert values == {(name, "hierarchy", "not certified: out of time") for name in (*NAMES, "coupling")}


def test_a_foundation_out_of_time_leaves_every_fact_in_the_report(asked, monkeypatch):
    endless(monkeypatch, "structure")
    found = one().verify()
    assert [v.law for v in found.verdicts if v.out_of_time] == list(LAWS)
    assert [f.name for f in found.facts] == [*NAMES, "coupling"]


@pytest.mark.parametrize(
    ("slow", "unsaid"),
    [("bounds", set(NAMES) - {"radius"}), ("amplification", {"amplification"})],
)
def test_laws_and_facts_share_one_time_limit(asked, monkeypatch, slow, unsaid):
    h, facts, decisions = one(), certified.facts, LAWS["structure"].decisions
    monkeypatch.setattr(
        certified, "facts", lambda subject: ((n, slowly(some, n == slow)) for n, some in facts(subject))
    )
    endless(monkeypatch, "structure", lambda subject: slowly(decisions(subject), True))
    found = h.verify(timeout=50)
    assert found.ok

    def late():
        return {f.name for f in found.facts if f.value == "not certified: out of time"}

    assert late() == unsaid | {"coupling"}  # which comes last
    assert found.fact("radius") == "C"  # what was certified is not lost
    found = h.verify(timeout=50)  # the laws are kept, and take no time
    assert not late()


def slowly(some, is_slow):
    """In 30 seconds by the clock."""
    if is_slow:
        spend(30)
        real.sleep(2 * budget.AGAIN)  # until somebody has looked at it
    yield from some


def test_giving_up_a_law_does_not_cover_a_timeout(asked, monkeypatch):
    endless(monkeypatch, decisions=lambda subject: never())
    h = one(
        gives_up={"first_order": "nobody may say so before it is decided", "identity": "neither", "positivity": "nor"}
    )
    found = h.verify()
    assert not found.ok
    assert [m.word for m in marks(found)][-len(LATER) - 1 :] == ["undecided"] * (len(LATER) + 1)
    assert "given_up" not in {v.law for v in found.verdicts}


# ---------------------------------------------------------------- what is kept


def test_verdicts_out_of_time_are_not_cached(asked, monkeypatch):
    h, decisions = one(), LAWS["identity"].decisions
    endless(monkeypatch)
    assert not h.verify().ok
    assert not list(asked.glob(f"{NOTES}/*"))
    endless(monkeypatch, decisions=decisions)
    found = h.verify(timeout=None)
    assert found.ok and found.facts
    assert {p.name.partition("-")[0] for p in asked.glob(f"{NOTES}/*")} == {"verdicts", "facts"}
    endless(monkeypatch)
    assert h.verify().ok  # kept: nothing is asked


def test_facts_out_of_time_are_not_cached(asked, monkeypatch):
    h, facts = one(), certified.facts
    monkeypatch.setattr(certified, "facts", lambda subject: ((name, never()) for name, _ in facts(subject)))
    h.verify(timeout=None)
    assert all("out of time" in f.value for f in h.verify().facts if f.subject == "hierarchy")
    assert not list(asked.glob(f"{NOTES}/facts*"))
    assert not module.SUBJECTS._recent._values
    monkeypatch.setattr(certified, "facts", facts)
    assert h.verify(timeout=60).fact("radius") == "C"


# ---------------------------------------------------------------- what is a time


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), -math.inf, "60", True, [], 1j])
def test_a_timeout_that_is_not_positive_is_an_error(timeout):
    with pytest.raises(ParameterError, match=r"no time to verify in(.|\n)*seconds above 0, or None"):
        one().verify(timeout=timeout)


def test_without_a_time_limit_work_runs_in_the_calling_thread():
    for timeout in (None, math.inf):
        where = []
        assert Budget(timeout).allows(lambda where=where: where.append(threading.current_thread()))
        assert where == [threading.current_thread()]


# ---------------------------------------------------------------- the work that is stopped


def test_exceptions_of_the_work_are_raised():
    for error in (ZeroDivisionError, KeyboardInterrupt, SystemExit):

        def fails(error=error):
            raise error("of the work")

        with pytest.raises(error, match="of the work"):
            Budget(60).allows(fails)


def test_a_spent_budget_allows_no_more_work():
    budget = Budget()
    assert not budget.allows(lambda: [None for _ in never()])
    assert not budget.allows(lambda: None)


def test_nested_work_ends_with_the_outer_work():
    began = []

    def inner():
        began.append(threading.current_thread())
        list(never())

    def outer():
        began.append(threading.current_thread())
        Budget(3600).allows(inner)

    assert not Budget().allows(outer)
    for thread in began:
        thread.join(60)
    assert [thread.is_alive() for thread in began] == [False, False]


@pytest.mark.thorough
def test_no_exception_arrives_after_the_work_has_ended(monkeypatch):
    """Thousands of works end when their time does, by the real clock. No exception strays and no thread stays."""
    strays = []
    monkeypatch.setattr(budget, "monotonic", real.monotonic)
    monkeypatch.setattr(threading, "excepthook", strays.append)
    monkeypatch.setattr(sys, "unraisablehook", strays.append)
    before, interval, chance = set(threading.enumerate()), sys.getswitchinterval(), random.Random(0)
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(2000):
            steps, done = chance.randrange(8000), []

            def work(steps=steps, done=done):
                for _ in range(steps):
                    pass
                done.append(steps)

            assert not Budget(1e-9).allows(work) or done
    finally:
        sys.setswitchinterval(interval)
    assert not strays
    assert not set(threading.enumerate()) - before  # of other tests' threads some may have ended


def test_an_interrupted_sympy_expression_is_created_anew():
    """An expression whose assumptions were interrupted is another object when it is created again."""
    seen = []

    def work():
        seen.append(sympy.exp(sympy.Symbol("x") + 1))
        list(never())

    assert not Budget().allows(work)
    assert sympy.exp(sympy.Symbol("x") + 1) is not seen[0]


def test_the_precision_of_mpmath_is_per_thread():
    with mpmath.workdps(20):
        context = mpmath.mp
        fifty = transcendental("log1p")(Fraction(1, 3))
        assert context.dps == 20
    assert transcendental("log1p")(Fraction(1, 3)) == fifty
    others = []
    other = threading.Thread(target=lambda: others.append(transcendental("log1p")(Fraction(1, 3))))
    other.start()
    other.join()
    assert others == [fifty]


# ---------------------------------------------------------------- callers


SLOW = """
from fibration import *

(token,) = strata("token")
slow = Hierarchy(name="slow", gates={token: clip_gate(1)}, decomposition=log_ratio(), objective=token_mean())
"""


@pytest.fixture
def spec(tmp_path, asked, monkeypatch):
    endless(monkeypatch)
    path = tmp_path / "slow.py"
    path.write_text(SLOW)
    return path


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("text", ["? undecided", "out of time after 50 s", "so too: first_order, "]),
        ("text --all", ["? undecided", "out of time after 50 s", "not certified: out of time"]),
        ("json", ['"out_of_time": true', "not certified: out of time"]),
        ("junit", ['type="undecided"', "out of time"]),
        ("github", ["::error", "slow%3A identity", "out of time after 50 s", "so too:   first_order"]),
        ("markdown", ["| ? | slow | refused: ", "1 undecided |\n", "out of time after 50 s"]),
    ],
)
def test_every_output_format_reports_the_timeout(spec, form, said):
    code, output = invoke("verify", spec, "--timeout", 50, "--format", *form.split())
    assert code == 1
    assert [s for s in said if s not in output] == []
    if form == "json":
        (report,) = json.loads(output)
        assert [v["law"] for v in report["verdicts"] if v.get("out_of_time")] == ["identity", *LATER]


def test_compile_and_run_take_a_timeout(spec):
    for command in ("compile", "run"):
        code, output = invoke(command, spec, "--timeout", 50)
        assert code == 1
        assert "out of time after 50 s" in output
    with pytest.raises(LawError, match="out of time"):
        fibration.compile(fibration.load(spec), "torch")
    for command, wrong in itertools.product(("verify", "compile", "run"), ("0", "-1", "nan", "soon")):
        code, output = invoke(command, "ppo", "--timeout", wrong)
        assert code == 2 and "timeout" in output


# ---------------------------------------------------------------- single operations


def pair(weight):
    finer, coarser = strata("token trajectory")
    gates = {s: clip_gate(1) for s in (finer, coarser)}
    fibrations = [Fibration(finer, coarser, MarkovKernel(weight))]
    return Hierarchy(name="pair", fibrations=fibrations, gates=gates, decomposition=log_ratio(), objective=token_mean())


def test_a_number_too_large_to_compute_leaves_laws_undecided():
    """exp(10⁸·n) has a value that no float64 holds, and no time suffices to compute with it."""
    n = exp(10**8 * count(token))
    found = pair(n / (n + 1)).verify(timeout=None)
    assert {v.status for v in found.verdicts if v.law in ("markov", "reflecting")} <= {"proved", "undecided"}
    gate = Gate(2 * residual * exp(10**9 * (1 + residual)) / exp(10**9 * (1 + residual)))
    found = Hierarchy(name="h", gates={token: gate}, decomposition=log_ratio(), objective=token_mean()).verify(
        timeout=None
    )
    (verdict,) = [v for v in found.verdicts if v.law == "identity"]
    assert verdict.status == "undecided"
    assert "262144 binary digits" in verdict.found


@pytest.mark.sampled
@pytest.mark.parametrize(
    "penalty",
    [
        lambda x: exp(1.0001 * log(1 + exp(1.0001 * x))),
        lambda x: exp(0.0001 * x) + exp(-x) - exp(1e-8 * x),
        lambda x: 1 / (1 + exp(0.12345 * x) + exp(x / 3)),
    ],
    ids=["a power of 1.0001", "exponents with large denominators", "a sigmoid"],
)
def test_sympy_cancels_no_polynomial_of_high_degree(penalty, monkeypatch):
    """`exp(1.0001*x)` is `exp(x/10000)**10001`: one operation on such a polynomial outlasts every time limit."""
    cancel, exponents = sympy.cancel, []

    def watched(value):
        found = [e.as_base_exp()[1] for e in value.atoms(sympy.Pow, sympy.exp)]
        exponents.extend(c for e in found if not e.is_Integer for c in e.atoms(sympy.Rational))
        assert all(max(abs(c.p), c.q) <= 100 for c in exponents)
        return cancel(value)

    monkeypatch.setattr(sympy, "cancel", watched)
    log_ratio = log_prob(policies("current")[0]) - log_prob(policies("reference")[0])
    found = one(penalties={"far": penalty(log_ratio)}).verify(timeout=None)
    assert [v.status for v in found.verdicts if v.law == "kl_gradient"] == ["refuted"]
    assert exponents


def test_roots_and_exponentials_that_are_atoms_still_cancel():
    x, y = sympy.symbols("x y", positive=True)
    for power in (sympy.exp(x * sympy.Rational(10001, 10000)), (1 + x) ** sympy.Rational(3, 1000)):
        assert cancelled((power**2 * y - 1) / (power * y * y) + 1 / (power * y * y)) == power / y
        assert cancelled((power + 1 / power) / (power**2 + 1)) == 1 / power
    assert cancelled((sympy.exp(2 * x) - 1) / (sympy.exp(x) - 1)) == sympy.exp(x) + 1


def test_a_number_with_many_digits_is_written_with_six():
    """Python refuses to write a number of more than 4300 digits."""
    far = (count(token) + 10**290) ** 16
    (verdict,) = [v for v in pair(far / (far + 1)).verify().verdicts if v.law == "reflecting"]
    assert verdict.status == "refuted"
    assert "gives 2" in str(verdict.counterexample) or "gives 1" in str(verdict.counterexample)


AFTERWARDS = """
import cProfile, time
from fibration.laws.budget import Budget

def busy():
    while True:
        pass

assert Budget(10.0).allows(lambda: None)
assert not Budget(0.05).allows(busy) if {stops} else True
with cProfile.Profile():
    for _ in range(3):
        (lambda: time.time())()
"""


@pytest.mark.parametrize("stops", [False, True])
def test_a_profiler_works_after_a_verification(stops):
    """In CPython 3.11, an exception that was set in a thread and never arrived makes every profiled call wait for it."""
    subprocess.run([sys.executable, "-c", AFTERWARDS.format(stops=stops)], check=True, timeout=60)
