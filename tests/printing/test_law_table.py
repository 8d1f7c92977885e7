"""The table of laws over several hierarchies: its marks, its notes, and that it knows no law by name."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
from hierarchies import wrong_specs

from fibration import load
from fibration.escaping import markdown_text
from fibration.language.loading import shipped
from fibration.language.report import Report, Verdict
from fibration.laws import LAWS
from fibration.printing.formats import as_markdown
from fibration.printing.law_table import KINDS, MARKS, legend, markdown, marks, notes
from fibration.printing.reports import Outcome

WRONG = {**wrong_specs.wrong(), **wrong_specs.undecidable()}


@functools.cache
def report(name: str) -> Report:
    return load(name).verify() if name in shipped() else WRONG[name].hierarchy.verify()


def words(name: str) -> dict[str, str]:
    return dict(zip(LAWS, (m.word for m in marks(report(name))), strict=True))


# ---------------------------------------------------------------- marks


def test_shipped_hierarchies_have_the_expected_marks() -> None:
    crossed = {law for law, word in words("fiberpo_crossed").items() if word != "proved"}
    # no token is weighed or dropped, there are no penalties and no advantages; and it rolls back
    assert crossed == {"agreement", "mask_open", "causal", "baseline", "kl_gradient", "inward"}
    crossed -= {"inward"}
    alone = {law for law, word in words("ppo").items() if word == "does not apply"}
    assert alone == crossed | {"markov", "reflecting", "coherent", "orthogonality"}  # there is no kernel
    of_policies = {
        name: [words(name)[law] for law in ("agreement", "mask_open", "causal")] for name in ("ppo", "tis", "mis")
    }
    assert of_policies["ppo"] == ["does not apply"] * 3  # it weighs and keeps nothing
    assert of_policies["tis"] == ["proved", "does not apply", "proved"]
    assert of_policies["mis"] == ["proved", "proved", "given up"]
    given_up = {law for law, word in words("gspo").items() if word == "given up"}
    assert given_up == {"identity", "first_order"}


@pytest.mark.parametrize(
    ("name", "law", "word"),
    [
        ("padded length", "reflecting", "refuted"),
        ("slope 2", "identity", "refuted"),
        ("a pole far out", "positivity", "undecided"),
        ("self-loop", "structure", "refuted"),
        ("its own density", "locality", "refuted"),
    ],
)
def test_the_worst_verdict_is_the_mark(name: str, law: str, word: str) -> None:
    assert words(name)[law] == word


def test_one_bad_subject_among_good_ones_shows() -> None:
    verdicts = tuple(
        Verdict("identity", f"gate {i}", status, "")
        for i, status in enumerate(("proved", "undecided", "refuted", "proved"))
    )
    shown = {}
    for n in (1, 2, 3, 4):
        made = Report(load("ppo"), verdicts[:n])
        shown[n] = dict(zip(LAWS, (m.word for m in marks(made)), strict=True))["identity"]
    assert shown == {1: "proved", 2: "undecided", 3: "refuted", 4: "refuted"}


def test_laws_after_a_failed_foundation_are_marked_as_not_decided() -> None:
    assert set(words("self-loop").values()) == {"refuted", MARKS["not asked"].word}
    found = words("its own density")
    assert found["structure"] == "proved"
    assert {word for law, word in found.items() if law not in ("structure", "locality")} == {MARKS["not asked"].word}
    assert "does not apply" not in markdown([report("self-loop")])


def test_marks_differ_and_only_those_that_occur_are_explained() -> None:
    assert len({m.sign for m in MARKS.values()}) == len({m.word[0] for m in MARKS.values()}) == len(MARKS)
    assert [m.word for m in legend([report("fiberpo_inward")])] == ["proved", "does not apply"]
    assert [m.word for m in legend([report("gspo"), report("ppo")])] == ["proved", "given up", "does not apply"]
    assert KINDS["given up"].sign != MARKS["given up"].sign  # one stands before its reason, one points at it


# ---------------------------------------------------------------- notes


def test_a_law_given_up_has_its_reason_and_what_still_holds() -> None:
    ((mark, note),) = notes(report("gspo"))
    assert mark == MARKS["given up"]
    assert note.startswith(f"gspo gives up identity, first_order: {load('gspo').gives_up['first_order']}")
    assert note.endswith("identity of gate on trajectory; first_order of advantages constant on each trajectory)")
    assert list(notes(report("fiberpo_inward"))) == []


def test_several_reasons_are_several_notes() -> None:
    made = [Verdict(law, "it", "refuted", "", given_up=why) for law, why in (("identity", "a"), ("positivity", "b"))]
    found = [note for _, note in notes(Report(load("ppo"), tuple(made)))]
    assert found == ["ppo gives up identity: a", "ppo gives up positivity: b"]


def test_a_needless_gives_up_is_a_note() -> None:
    name = "gives up positivity, which holds"
    assert words(name)["positivity"] == "proved"
    ((mark, note),) = notes(report(name))
    assert (mark, note) == (MARKS["refuted"], f"'{WRONG[name].hierarchy.name}' gives up law 'positivity', which holds")
    assert markdown_text(note) in markdown([report(name)])


def test_every_cause_of_refusal_has_a_note() -> None:
    ((mark, note),) = notes(report("padded length"))
    assert mark == MARKS["refuted"]
    assert note == (
        "kernel token → trajectory of 'two' breaks the law 'reflecting': a trajectory of 1 token gives 1/2 (padded = 2) "
        "(so too: orthogonality of residual on token)"
    )
    assert words("padded length")["orthogonality"] == MARKS["follows"].word
    assert [mark.word for mark, _ in notes(report("wrong in the fortieth digit"))] == ["undecided"]


# ---------------------------------------------------------------- Markdown


def test_markdown_is_one_table_with_all_cells() -> None:
    page = markdown([report("gspo"), report("padded length")])
    table, shown, *below = page.split("\n\n")
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in table.splitlines()]
    assert rows[0] == ["hierarchy", *LAWS]
    assert rows[1] == ["---", *[":-:"] * len(LAWS)]
    for row, name in zip(rows[2:], ("gspo", "padded length"), strict=True):
        assert row[1:] == [m.sign for m in marks(report(name))]
    assert shown == "✓ proved, † given up, ↳ follows from a law that fails, ✗ refuted, · does not apply"
    assert below == [
        f"{mark.sign} {markdown_text(note)}" for name in ("gspo", "padded length") for mark, note in notes(report(name))
    ]
    assert as_markdown([Outcome("a", report("ppo"))], full=True) == markdown([report("ppo")])


def test_brief_markdown_has_a_row_per_hierarchy_then_failures_then_what_is_given_up() -> None:
    page = as_markdown([Outcome(name, report(name)) for name in ("gspo", "padded length", "ppo")])
    table, *below = page.split("\n\n")
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in table.splitlines()]
    assert [row[:2] for row in rows[2:]] == [["✓", "gspo"], ["✗", "two"], ["✓", "ppo"]]
    assert rows[2][2] == "verified: 10 laws proved, 2 given up, 2 warnings" and rows[3][2].startswith("refused: ")
    assert [line for line in below if not line.startswith("!")] == [
        f"{m.sign} {markdown_text(n)}" for name in ("gspo", "padded length") for m, n in notes(report(name))
    ]
    assert [line.split(" of ")[0] for line in below if line.startswith("!")] == [
        f"! {report(name).hierarchy.name}: {f.name}"
        for name in ("gspo", "padded length", "ppo")
        for f in report(name).warnings
    ]


def test_a_reason_is_escaped_in_markdown() -> None:
    reason = "50% | <b>, *at*\x01 line\nbreaks, `x` [y](z) a_b _c_"
    made = Report(load("ppo"), (Verdict("identity", "it", "refuted", "", given_up=reason),))
    note = markdown([made]).splitlines()[-1]
    assert note == (r"† ppo gives up identity: 50% \| \<b\>, \*at\*\\x01 line breaks, \`x\` \[y\](z) a_b \_c\_")


# ---------------------------------------------------------------- laws to come


def test_a_new_law_is_a_new_column(monkeypatch: pytest.MonkeyPatch) -> None:
    before = report("ppo")
    law = replace(LAWS["positivity"], name="newest")
    monkeypatch.setitem(LAWS, "newest", law)
    assert dict(zip(LAWS, marks(before), strict=True))["newest"].word == "does not apply"
    made = Report(load("ppo"), (*before.verdicts, Verdict("newest", "it", "undecided", "")))
    assert marks(made)[-1] == MARKS["undecided"]
    assert "| newest |" in markdown([made])


def test_reasons_for_one_law_name_their_subjects() -> None:
    reasons = {"trajectory": "a", "token": "b"}
    made = [Verdict("inward", f"gate on {s}", "refuted", "", given_up=why) for s, why in reasons.items()]
    found = [note for _, note in notes(Report(load("ppo"), tuple(made)))]
    assert found == ["ppo gives up inward of gate on trajectory: a", "ppo gives up inward of gate on token: b"]
