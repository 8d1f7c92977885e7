"""The cache of verdicts: a hierarchy is decided once, equals a fresh decision, and is read only from safe folders.

A "process" here is a test that has forgotten what is in memory, unless it says that it starts one.
"""

import functools
import json
import pickle
import re
import shutil
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hierarchies import wrong_specs
from thorough import some

import fibration
from fibration import Fibration, Gate, Hierarchy, cache, clip_gate, pipeline, residual, strata, trajectory_mean, uniform
from fibration.language.atoms import Parameter
from fibration.language.gates import log_ratio
from fibration.language.grammar import CONSTRUCTORS, constructor
from fibration.language.hierarchy import fingerprint
from fibration.language.report import Report
from fibration.language.strata import MarkovKernel, proportional
from fibration.laws import LAWS, catalogue, kept
from fibration.laws import verify as module
from fibration.laws.batches.concrete import Witness
from fibration.laws.facts import certified
from fibration.laws.law import Law

SOURCES = kept.sources()
WRONG = wrong_specs.wrong()
token, trajectory, domain = strata("token trajectory domain")
C = Parameter("C", default=0.1)


def ppo():
    """A hierarchy that verifies quickly, built anew."""
    return Hierarchy.model_validate_json(fibration.load("ppo").model_dump_json())


def plain(gate, **more):
    return Hierarchy(name="plain", gates={token: gate}, decomposition=log_ratio(), objective=trajectory_mean(), **more)


GOOD, BROKEN = plain(clip_gate(C)), plain(Gate(2 * residual))


def forget(monkeypatch):
    """As in a process that has just begun."""
    for name in ("VERDICTS", "FACTS", "SUBJECTS"):
        monkeypatch.setattr(getattr(module, name), "_recent", cache.Recent(256))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty cache folder of this test's own, and an empty memory; what is decided may be kept in both."""
    monkeypatch.setenv("FIBRATION_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kept, "SOURCES", SOURCES)
    forget(monkeypatch)
    return tmp_path / "cache"


@pytest.fixture
def decided(monkeypatch):
    """The names of the hierarchies that a law was asked about."""
    return counted(monkeypatch)


def counted(monkeypatch, law="structure"):
    asked, decisions = [], LAWS[law].decisions

    @functools.wraps(decisions)
    def count(subject):
        asked.append(subject.hierarchy.name)
        return decisions(subject)

    monkeypatch.setitem(LAWS, law, replace(LAWS[law], decisions=count))
    monkeypatch.setattr(catalogue, "OURS", tuple(LAWS.items()))  # this one only counts
    monkeypatch.setattr(Law, "_holds", lambda *_: True)  # a trial of a fix asks laws of other hierarchies
    return asked


@pytest.fixture
def found(monkeypatch):
    """The names of the hierarchies whose facts were looked for."""
    asked, facts = [], certified.facts

    def count(subject):
        asked.append(subject.hierarchy.name)
        return facts(subject)

    monkeypatch.setattr(certified, "facts", count)
    return asked


def notes(place, what="verdicts"):
    return sorted((place / cache.NOTES).glob(f"{what}-*/{cache.NOTE}"))


# ---------------------------------------------------------------- once


def test_equal_hierarchies_are_decided_once(decided, found):
    first, second = plain(clip_gate(C), rows=domain), plain(clip_gate(C), rows=domain)
    reports = first.verify(), second.verify()
    assert decided == ["plain"]
    assert [r.hierarchy for r in reports] == [first, second]
    assert reports[1].hierarchy is second
    assert reports[0] == reports[1]
    assert reports[0].facts == reports[1].facts
    assert found == ["plain"]


def test_every_law_is_decided_once(monkeypatch, place):
    asked = [counted(monkeypatch, law) for law in LAWS]
    for _ in range(3):
        ppo().verify().raise_for_status()
    assert asked == [["ppo"]] * len(LAWS)


def test_a_refused_hierarchy_is_decided_once(decided, place):
    assert [plain(Gate(2 * residual)).verify().ok for _ in range(3)] == [False] * 3
    assert decided == ["plain"]


def test_threads_that_verify_at_once_decide_once(decided, place):
    ready = threading.Barrier(4)

    def ask(_):
        ready.wait()
        return ppo().verify()

    with ThreadPoolExecutor(4) as pool:
        told = {str(r) for r in pool.map(ask, range(4))}
    assert len(told) == 1
    assert 1 <= len(decided) <= 4
    ppo().verify()
    assert len(decided) <= 4


def test_facts_are_certified_when_they_are_first_read(found, place):
    report = ppo().verify()
    report.raise_for_status()
    fibration.compile(ppo(), backend="torch")
    assert found == []
    assert all(f.value in report.table() for f in report.facts)
    assert report.to_dict()["facts"] == [f.to_dict() for f in report.facts] != []
    assert found == ["ppo"]


def test_a_hierarchy_that_breaks_a_foundation_has_no_facts(found, place):
    wrong = next(w.hierarchy for w in WRONG.values() if w.law == "reflecting")
    assert wrong.verify().facts == ()
    assert found == []


def test_an_operator_is_built_once(decided, place, monkeypatch, capsys):
    made = []
    monkeypatch.setattr(pipeline, "build", lambda h, build=pipeline.build: made.append(h.name) or build(h))
    monkeypatch.setattr(pipeline, "ARTIFACTS", cache.Recent(32))
    op = fibration.compile(ppo(), backend="torch")
    monkeypatch.setenv("FIBRATION_PRINT", "1")
    copy = pickle.loads(pickle.dumps(op))
    assert (made, decided) == (["ppo"], ["ppo"])
    assert capsys.readouterr().err == op.source + "\n"
    assert (copy.source, str(copy.report)) == (op.source, str(op.report))
    fibration.compile(ppo().replace(name="other"), backend="torch")
    assert (made, decided) == (["ppo", "other"], ["ppo", "other"])


def test_the_cache_in_memory_is_bounded():
    recent, found = cache.Recent(2), []

    def get(key):
        return recent.get(key, lambda: found.append(key) or key.upper())

    assert [get(k) for k in "abacab"] == list("ABACAB")
    assert found == list("abcb")  # b was the one not asked for longest when c came


# ---------------------------------------------------------------- another process

ASK = """
    import sys
    import fibration
    from fibration.laws import verify
    decide, asked = verify.decide, []
    verify.decide = lambda h, budget: asked.append(h.name) or decide(h, budget)
    report = fibration.load("ppo").verify()
    print(report, report.to_dict(), sep="\\n")
    print(asked, file=sys.stderr)
"""


def ask():
    return subprocess.run([sys.executable, "-c", textwrap.dedent(ASK)], capture_output=True, text=True, check=True)


@pytest.mark.thorough
def test_another_process_reads_the_cached_verdicts(place):
    first, second = ask(), ask()
    assert (first.stderr, second.stderr) == ("['ppo']\n", "[]\n")
    assert first.stdout == second.stdout
    assert first.stdout.startswith(str(ppo().verify()))


@pytest.mark.thorough
def test_processes_that_start_at_once_write_one_cache_entry(place):
    with ThreadPoolExecutor(2) as pool:
        told = {done.stdout for done in pool.map(lambda _: ask(), range(2))}
    assert len(told) == 1
    assert sorted(p.name.partition("-")[0] for p in (place / cache.NOTES).iterdir()) == ["facts", "verdicts"]


NAMES = ["apc_obj", "gspo", "sapo", "truly_ppo"]
REFUSED = [
    *["negative by an attribute", "right for pairs only", "slope 2 below", "dip between breakpoints"],
    *dict((w.law, n) for n, w in WRONG.items()).values(),
]


@pytest.mark.sampled
@pytest.mark.parametrize("name", some([*NAMES, *dict.fromkeys(REFUSED)], 3, 1))
def test_a_report_from_the_cache_equals_the_report_that_was_written(name, place, decided, found, monkeypatch):
    """Verdicts, facts and the text of counterexamples are equal. The batch of a counterexample is found again."""
    h = fibration.load(name) if name in NAMES else WRONG[name].hierarchy
    first = h.verify()
    told = str(first), json.dumps(first.to_dict()), [str(v.error(h.name)) for v in first.verdicts]
    forget(monkeypatch)
    decided.clear(), found.clear()
    again = h.verify()
    assert (str(again), json.dumps(again.to_dict()), [str(v.error(h.name)) for v in again.verdicts]) == told
    assert (again.ok, again.failures == (), decided, found) == (first.ok, first.ok, [], [])
    for v, w in zip(first.verdicts, again.verdicts, strict=True):
        assert replace(v, counterexample=None) == replace(w, counterexample=None)
        if v.counterexample is not None:
            assert isinstance(v.counterexample, Witness)
            assert {k: str(x) for k, x in w.counterexample.values.items()} == {
                k: str(x) for k, x in v.counterexample.values.items()
            }
            batches = v.counterexample.concrete, w.counterexample.concrete
            assert [b and b.to_dict() for b in batches] == [batches[0] and batches[0].to_dict()] * 2


def test_reports_can_be_pickled_before_and_after_facts_are_read(place, monkeypatch):
    """Reports that were decided and reports from the cache can be pickled."""
    first = ppo().verify()
    copies = [pickle.loads(pickle.dumps(first))]
    shown = str(first)
    forget(monkeypatch)
    read = ppo().verify()
    copies += [pickle.loads(pickle.dumps(r)) for r in (first, read)]
    assert all(isinstance(r, Report) and r == first and str(r) == shown for r in copies)
    assert hash(read) == hash(first)
    assert read != BROKEN.verify()


# ---------------------------------------------------------------- what a verdict is of


def two(kernel=None, **more):
    return Hierarchy(
        name="two",
        fibrations=[Fibration(token, trajectory, kernel or uniform())],
        gates={token: clip_gate(C), trajectory: clip_gate(C)},
        decomposition=log_ratio(),
        objective=trajectory_mean(),
        **more,
    )


OTHERS = {
    "name": GOOD.replace(name="other"),
    "bound of a parameter": plain(clip_gate(Parameter("C", default=0.1, upper=1))),
    "default of a parameter": plain(clip_gate(Parameter("C", default=0.2))),
    "default per channel": plain(clip_gate(Parameter("C", default={"+": 0.1, "-": 0.1}, per_channel=True))),
    "name of a parameter": plain(clip_gate(Parameter("D", default=0.1))),
    "formula": plain(clip_gate(C / 2)),
    "formula, not called": plain(Gate(clip_gate(C).expression)),
    "a number": plain(clip_gate(0.1)),
    "decomposition": GOOD.replace(decomposition=log_ratio(scale=2)),
    "objective": GOOD.replace(objective=trajectory_mean().score()),
    "given up": GOOD.replace(gives_up={"positivity": "why"}),
    "given up, why": GOOD.replace(gives_up={"positivity": "why not"}),
    "given up, another": GOOD.replace(gives_up={"identity": "why", "positivity": "why"}),
    "given up, in another order": GOOD.replace(gives_up={"positivity": "why", "identity": "why"}),
    "rows": GOOD.replace(rows=domain),
    "two strata": two(),
    "assumed": two(assume=[fibration.populated(token, over=trajectory)]),
    "kernel": two(proportional(fibration.count(token))),
    "weight": two(MarkovKernel(1 / fibration.count(token, over=trajectory))),
}


def test_different_declarations_have_different_cache_keys():
    keys = {name: fingerprint(h) for name, h in {"this one": GOOD, **OTHERS}.items()}
    assert None not in keys.values()
    assert len(set(keys.values())) == len(keys)
    assert fingerprint(plain(clip_gate(Parameter("C", default=0.1)))) == keys["this one"]
    crossed = fibration.load("fiberpo_crossed")
    assert fingerprint(crossed.replace(orthogonalise=None)) != fingerprint(crossed)
    assert fingerprint(pickle.loads(pickle.dumps(crossed))) == fingerprint(crossed)


def test_equal_hierarchies_keep_the_order_of_their_own_declaration(place):
    a, b = OTHERS["given up, another"], OTHERS["given up, in another order"]
    assert a == b
    subjects = [[v.subject for v in h.verify().failures] for h in (a, b)]
    assert subjects == [["law 'identity'", "law 'positivity'"], ["law 'positivity'", "law 'identity'"]]


@pytest.mark.parametrize("what", ["SOURCES", "versions"])
def test_other_sources_or_versions_are_decided_anew(what, place, decided, monkeypatch):
    ppo().verify()
    monkeypatch.setattr(kept, what, "other" if what == "SOURCES" else lambda: ["other"])
    assert ppo().verify().ok
    forget(monkeypatch)
    assert ppo().verify().ok
    assert decided == ["ppo", "ppo"]
    assert len(notes(place)) == 2


def test_an_edit_of_the_language_or_the_laws_changes_the_hash_of_the_sources(tmp_path, monkeypatch):
    copied = tmp_path / "fibration"
    shutil.copytree(Path(fibration.__file__).parent, copied, symlinks=True)
    monkeypatch.setattr(kept, "__file__", str(copied / "laws" / "kept.py"))
    assert kept.sources() == SOURCES
    (copied / "bench" / "report.py").write_text("pass")
    assert kept.sources() == SOURCES
    seen = {SOURCES}
    for edited in (
        "laws/kernels/reflecting.py",
        "laws/signs/neighbourhood.py",
        "laws/batches/concrete.py",
        "compiler/lower.py",
        "language/gates.py",
        "errors.py",
    ):
        with (copied / edited).open("a") as file:
            file.write("# more\n")
        seen.add(kept.sources())
    (copied / "laws" / "newest.py").write_text("")
    seen.add(kept.sources())
    assert len(seen) == 8
    shutil.rmtree(copied / "laws")
    (copied / "errors.py").unlink()
    assert kept.sources() == ""


def test_nothing_is_stored_if_the_sources_have_been_edited_since_they_were_read(place, monkeypatch):
    monkeypatch.setattr(kept, "are_unedited", kept.are_unedited.__wrapped__)
    monkeypatch.setattr(kept, "sources", lambda: "edited")
    assert ppo().verify().ok and not notes(place)


def test_the_laws_import_only_modules_in_the_hash_of_the_sources():
    """Otherwise an edit of another module would not change the hash."""
    package = Path(fibration.__file__).parent
    files = {f for room in ("language", "compiler", "laws") for f in (package / room).rglob("*.py")}
    texts = [f.read_text() for f in files]
    used = {m for text in texts for m in re.findall(r"^\s*(?:from|import) fibration\.(\w+)", text, re.MULTILINE)}
    assert used == {"compiler", "errors", "escaping", "files", "language", "laws"}
    whole = {m for text in texts for m in re.findall(r"^\s*from fibration import (.+)", text, re.MULTILINE)}
    assert whole == {"cache"}


def test_without_sources_nothing_is_cached_on_disk(place, decided, monkeypatch):
    monkeypatch.setattr(kept, "SOURCES", "")
    ppo().verify()
    ppo().verify()
    assert decided == ["ppo"]
    assert not place.exists()


def test_a_users_constructor_is_keyed_by_its_formula(place, decided, monkeypatch):
    """The JSON form has the constructor's name alone."""

    def declare(slope):
        @constructor(Gate, examples=())
        def my_gate(bound):
            return Gate(clip_gate(bound).expression * slope)

        return plain(my_gate(C))

    try:
        right, wrong = declare(1), declare(2)
    finally:
        del CONSTRUCTORS["my_gate"]
    assert right.model_dump_json() == wrong.model_dump_json()
    assert right.verify().ok and not wrong.verify().ok
    forget(monkeypatch)
    assert right.verify().ok and not wrong.verify().ok
    assert len(decided) == 2


class Mine(Hierarchy):
    """Gates that no field tells of."""

    def gate(self, stratum):
        return Mine.factor * super().gate(stratum)


def test_a_hierarchy_of_a_users_class_is_never_cached(place, decided, monkeypatch):
    mine = Mine(**{k: getattr(GOOD, k) for k in Hierarchy.model_fields})
    monkeypatch.setattr(Mine, "factor", 1, raising=False)
    assert mine.verify().ok
    monkeypatch.setattr(Mine, "factor", 2)
    assert not mine.verify().ok
    assert "refused" in str(mine.verify())
    assert len(decided) == 3
    assert not place.exists()


@pytest.mark.parametrize("name", ["newest", "identity"])
def test_verdicts_of_a_users_law_are_never_cached(name, place, monkeypatch):
    """This holds for a new law, and for one that replaces a law and looks like it."""
    asked, law = [], LAWS["identity"]

    @functools.wraps(law.decisions)
    def decisions(subject):
        asked.append(subject.hierarchy.name)
        return law.decisions(subject)

    monkeypatch.setitem(LAWS, name, replace(law, name=name, decisions=decisions))
    ppo().verify()
    ppo().verify()
    assert asked == ["ppo", "ppo"]
    assert not place.exists()


# ---------------------------------------------------------------- what is believed


def forge(monkeypatch):
    """A note that says of the broken hierarchy what is true of the good one, sealed as it should be."""
    for h in (GOOD, BROKEN):
        h.verify()
    forget(monkeypatch)
    good, broken = (f"verdicts-{kept.key_of(h)}" for h in (GOOD, BROKEN))
    note = cache.folder() / cache.NOTES / broken / cache.NOTE
    shutil.rmtree(note.parent)
    cache.keep(broken, cache.recall(good))
    return note


def test_a_cache_file_in_the_users_own_folder_is_read(place, monkeypatch):
    """Whoever may write there may run any code as this user, as with cached machine code."""
    forge(monkeypatch)
    assert BROKEN.verify().ok


def test_a_cache_file_that_others_can_write_is_not_read(place, decided, monkeypatch):
    note = forge(monkeypatch)
    decided.clear()
    note.chmod(0o666)
    assert not BROKEN.verify().ok
    assert decided == ["plain"]


DAMAGE = {
    "cut short": lambda note: note.write_bytes(note.read_bytes()[:-40]),
    "a note of another hierarchy": lambda note: shutil.copytree(
        next(n for n in notes(note.parents[2]) if n != note).parent, note.parent, dirs_exist_ok=True
    ),
}


@pytest.mark.parametrize("harm", DAMAGE)
@pytest.mark.parametrize("what", ["verdicts", "facts"])
def test_a_damaged_cache_file_is_detected_and_replaced(what, harm, place, decided, found, monkeypatch):
    shown = str(GOOD.verify())
    (note,) = notes(place, what)
    str(BROKEN.verify())
    DAMAGE[harm](note)
    for expected in (["plain"], []):
        forget(monkeypatch)
        decided.clear(), found.clear()
        assert str(GOOD.verify()) == shown
        assert (decided if what == "verdicts" else found) == expected


def test_a_cache_that_cannot_be_used_raises_no_error(place, decided):
    place.write_text("a file")
    for _ in range(2):
        report = ppo().verify()
        assert report.ok and report.facts
    assert decided == ["ppo"]
