"""Questions and their scoring, without the package that makes them."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from example_loops import example

from fibration.errors import FibrationError

tasks: Any = example("reasoning_tasks")


@pytest.mark.parametrize(
    ("dataset", "completion", "scored"),
    [
        ("chain_sum", " 4 + 3 = 7\n", "7"),
        ("chain_sum", " 7.<|im_end|>", "7.<|im_end|>"),
        ("chain_sum", " 7\n", "7"),
        ("gcd", " gcd(2, 6) = 2.", "2"),
        ("simple_equations", " z = 8\n", "8"),
        ("letter_counting", " 2 times\n", "2"),
        ("ransom_note", " True\n", "True"),
        ("syllogism", " No, that is the answer\n", "No"),
        ("knights_knaves", " Ann is a knight, and Ben is a knave.\n", "Ann is a knight, and Ben is a knave"),
    ],
)
def test_the_scored_part_of_an_answer(dataset: str, completion: str, scored: str) -> None:
    task = next(task for tasks in tasks.DOMAINS.values() for task in tasks if task.dataset == dataset)
    found = re.search(task.answer, completion.strip())
    assert found is not None
    assert found[1] == scored


class Sums(list[dict[str, object]]):
    """Sums of one-digit numbers as a dataset of reasoning-gym gives them, every one of them twice."""

    def __init__(self, name: str, *, seed: int, size: int, different: int = 1000) -> None:
        sums = [(seed + k // 2, 1) for k in range(min(size, 2 * different))]
        super().__init__(
            {"question": f"What is {a} + {b}?", "answer": str(a + b), "metadata": {"b": b}} for a, b in sums
        )

    def score_answer(self, answer: str, entry: dict[str, object]) -> float:
        return 1.0 if answer == entry["answer"] else 0.985 if answer.isdigit() else 0.01


SUM = tasks.Task("sums", question=r"is (.*)\?", completion="{question} = {answer} since {b}", answer=r"= (\w+)")


@pytest.fixture(autouse=True)
def sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "require", lambda *names: SimpleNamespace(create_dataset=Sums))


def test_questions_differ_and_share_their_solved_examples() -> None:
    asked = tasks.questions(SUM, 3, seed=4, examples=2)
    solved = "Question: 4 + 1\nAnswer: 4 + 1 = 5 since 1\n\nQuestion: 5 + 1\nAnswer: 5 + 1 = 6 since 1\n\n"
    assert [q.prompt for q in asked] == [f"{solved}Question: {a} + 1\nAnswer:" for a in (6, 7, 8)]
    assert [q.completion for q in asked] == [f"{a} + 1 = {a + 1} since 1" for a in (6, 7, 8)]
    assert [q.prompt for q in tasks.questions(SUM, 5, seed=4, examples=2)][:3] == [q.prompt for q in asked]


@pytest.mark.parametrize(
    ("completion", "reward"), [(" 6 + 1 = 7\n", 1.0), (" 6 + 1 = 8", 0.0), ("= ?", 0.0), ("7", 0.0)]
)
def test_partial_credit_is_no_reward(completion: str, reward: float) -> None:
    assert tasks.questions(SUM, 1, seed=4, examples=2)[0].reward(completion) == reward


def test_a_dataset_with_too_few_questions_is_named() -> None:
    assert len(tasks.questions(SUM, 3, seed=0, examples=2)) == 3
    few = tasks.Task("sums", {"different": 4}, SUM.question, SUM.completion)
    with pytest.raises(FibrationError, match=r"'sums' has too few questions(.|\n)*5 different(.|\n)*4 among 8"):
        tasks.questions(few, 3, seed=0, examples=2)


def test_a_question_of_unknown_form_is_named() -> None:
    with pytest.raises(FibrationError, match=r"task 'sums' cannot be asked(.|\n)*found:    'What is 0 \+ 1\?'"):
        tasks.questions(tasks.Task("sums", question=r"numbers: (.*)\."), 1, seed=0)
