"""Each run happens once, after interruptions too, with any number of processes."""

import json
from dataclasses import asdict

import pytest
import run as runner
import torch
from rl import Run
from store import key

PLAN = [
    Run("x", arm, condition, seed, 1e-4, trust, 10)
    for condition in ("fresh", "unequal")
    for arm, trust in (("reinforce", None), ("grpo", 0.5), ("clip_domains", 0.1))
    for seed in range(3)
]


class Interrupted(BaseException):
    pass


@pytest.fixture
def learnt(monkeypatch):
    """Runs in the order in which they are learnt; what is learnt is a number of each run's own."""
    seen = []

    def learn(shape, runs, base):
        assert len({(r.condition, r.steps, r.arm == "clip_domains") for r in runs}) == 1 and len(base) == len(runs)
        seen.extend(runs)
        return [{"right": [[r.seed, len(r.arm), len(r.condition), 0]]} for r in runs]

    monkeypatch.setattr(runner, "learn", learn)
    monkeypatch.setattr(runner, "base", lambda shape, seed, results: torch.zeros(1))
    monkeypatch.setitem(runner.PARTS, "x", lambda results: PLAN)
    return seen


def lines(folder):
    """Every whole line: its run and what was measured."""
    found = []
    for text in (folder / "x.jsonl").read_text().splitlines():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        found.append((key(line["run"]), line["measured"]))
    return sorted(found, key=str)


WHOLE = sorted(((key(asdict(r)), {"right": [[r.seed, len(r.arm), len(r.condition), 0]]}) for r in PLAN), key=str)


def test_every_run_of_a_plan_happens_once(learnt, tmp_path):
    assert runner.go("x", 4, results=tmp_path) == len(PLAN)
    assert lines(tmp_path) == WHOLE
    assert runner.go("x", 4, results=tmp_path) == 0 and len(learnt) == len(PLAN)


@pytest.mark.parametrize("cut", [1, 2, 40, -1])
def test_a_run_with_an_incomplete_line_is_repeated(learnt, tmp_path, cut):
    runner.go("x", 4, results=tmp_path)
    file = tmp_path / "x.jsonl"
    whole = file.read_bytes()
    last = len(whole.splitlines()[-1])
    file.write_bytes(
        whole[: -cut if cut > 0 else -last]
    )  # of the last line there is all but its end, or its first byte
    runner.go("x", 4, results=tmp_path)
    assert lines(tmp_path) == WHOLE
    assert len(learnt) == len(PLAN) + (cut != 1)


def test_an_interrupted_study_continues(learnt, tmp_path, monkeypatch):
    learn, calls = runner.learn, []

    def killed(*given):
        calls.append(1)
        if len(calls) == 3:
            raise Interrupted
        return learn(*given)

    monkeypatch.setattr(runner, "learn", killed)
    with pytest.raises(Interrupted):
        runner.go("x", 4, results=tmp_path)
    assert 0 < len(lines(tmp_path)) < len(PLAN)
    runner.go("x", 4, results=tmp_path)
    assert lines(tmp_path) == WHOLE and len(learnt) == len(PLAN)


def test_two_processes_share_the_work_whenever_they_start(learnt, tmp_path, monkeypatch):
    learn, other = runner.learn, []

    def meanwhile(*given):
        found = learn(*given)
        if not other:  # the second starts when the first has done a part
            other.append(0)
            runner.go("x", 2, 1, 2, results=tmp_path)
        return found

    monkeypatch.setattr(runner, "learn", meanwhile)
    runner.go("x", 2, 0, 2, results=tmp_path)
    assert lines(tmp_path) == WHOLE and len(learnt) == len(PLAN)
    started_again = list(learnt)
    (tmp_path / "x.jsonl").write_text("".join((tmp_path / "x.jsonl").read_text().splitlines(keepends=True)[:9]))
    learnt.clear()
    left = len(PLAN) - 9
    assert runner.go("x", 4, 1, 2, results=tmp_path) + runner.go("x", 4, 0, 2, results=tmp_path) == left
    assert lines(tmp_path) == WHOLE and len(set(learnt)) == left and set(learnt) < set(started_again)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--worker", "2/2"], "'2/2' is no share K/N"),
        (["--worker", "x"], "'x' is no share K/N"),
        (["--worker", "0"], "'0' is no share K/N"),
        (["--stack", "0"], "'0' is no number of models"),
    ],
)
def test_an_invalid_share_is_refused(learnt, monkeypatch, capsys, tmp_path, given, said):
    monkeypatch.setattr("sys.argv", ["run.py", "x", *given, "--results", str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        runner.main()
    assert said in capsys.readouterr().err and not learnt


def test_a_group_of_bases_is_trained_once(monkeypatch, tmp_path):
    trained = []
    monkeypatch.setattr(runner, "BASES", tmp_path / "bases")
    monkeypatch.setattr(runner, "SEED_GROUPS", ((3, 4), (5,)))

    def pretrain(shape, group):
        trained.append(group)
        return torch.tensor(group, dtype=torch.float32)[:, None], torch.full((len(group), 4), 0.25)

    monkeypatch.setattr(runner, "pretrain", pretrain)
    assert [float(runner.base(None, seed, tmp_path)) for seed in (4, 3, 5, 4)] == [4, 3, 5, 4]
    assert trained == [(3, 4), (5,)] and len((tmp_path / "bases.jsonl").read_text().splitlines()) == 3
    for folder in ("other", ""):  # where bases are there the line is written all the same, and once
        runner.base(None, 3, tmp_path / folder)
        assert runner.read_bases(tmp_path / folder)[3] == [0.25] * 4
    assert trained == [(3, 4), (5,)] and len((tmp_path / "bases.jsonl").read_text().splitlines()) == 3
    torch.save(torch.tensor([7.0]), tmp_path / "bases" / "5.pt")  # as an earlier version kept weights
    assert float(runner.base(None, 5, tmp_path)) == 7
    with pytest.raises(SystemExit, match=r"^seed 6 has no base policy"):
        runner.base(None, 6, tmp_path)
