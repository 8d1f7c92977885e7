"""Questions of `reasoning-gym`, shortened for a small language model, and their scoring.

Nothing is downloaded: the package generates its questions from a seed.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fibration.errors import FibrationError, MissingDependency

RIGHT = 0.99  # a lower score is partial or consolation credit and counts as wrong
EXAMPLES = 6  # solved questions in front of each question


@dataclass(frozen=True)
class Task:
    """One reasoning-gym dataset, and how its questions are shortened for a small model."""

    dataset: str
    config: Mapping[str, Any] = field(default_factory=dict)
    question: str = r"(?s)(.*)"  # regex; its groups are the part of the dataset's question that is asked
    completion: str = "{answer}"  # the answer in the examples; may name {question} and the entry's metadata
    answer: str = r"(.*?)\.?$"  # regex; its group 1 is the part of a completion that is scored


_RESULT = r"(?:.*=)?\s*(\S+?)\.?$"  # the text behind the last "=", or all of it

# A domain is a category of reasoning-gym. The tasks are easy enough that most groups of 8 samples have right and wrong
# answers. Their answers differ in length and variety.
DOMAINS: Mapping[str, tuple[Task, ...]] = {
    "arithmetic": (
        Task("chain_sum", {"max_terms": 2, "max_digits": 1}, r": (.*) =$", "{question} = {answer}", _RESULT),
        Task("gcd", {"max_value": 12}, r"numbers: (.*?)\. Give", "gcd({question}) = {answer}", _RESULT),
    ),
    "algebra": (
        Task(
            "simple_equations",
            {"min_terms": 1, "max_terms": 1, "max_value": 9, "operators": ["*"], "operators_weights": [1.0]},
            completion="{variable} = {answer}",
            answer=_RESULT,
        ),
    ),
    "algorithmic": (
        Task("letter_counting", {"min_words": 5, "max_words": 8}, r"(.*)", "{answer} times", r"(\d+)"),
        Task(
            "ransom_note",
            {"max_note_length": 4, "max_magazine_length": 8},
            r"(Ransom note: .*)\n(Magazine: .*)",
            answer=r"(\w+)",
        ),
    ),
    "logic": (
        Task(
            "syllogism",
            question=r"statements:\n1\. (.*)\n2\. (.*)\n\n(Does .*)\n(.*)\n",
            completion="{answer}, that is the answer",
            answer=r"(\w+)",
        ),
        Task("knights_knaves", question=r"(?s)inhabitants: (.*) \("),
    ),
}


@dataclass(frozen=True)
class Question:
    """One question of a task, behind solved examples."""

    task: Task
    prompt: str
    completion: str  # the right answer, in the form of the examples
    dataset: Any
    entry: Mapping[str, Any]

    def reward(self, completion: str) -> float:
        """Returns 1.0 if the dataset scores the answer in the completion at least `RIGHT`, else 0.0."""
        found = re.search(self.task.answer, completion.strip())
        return float(found is not None and self.dataset.score_answer(found[1], self.entry) >= RIGHT)


def questions(task: Task, count: int, seed: int, examples: int = EXAMPLES) -> list[Question]:
    """Returns `count` different questions, all behind the same `examples` other questions with their answers.

    Equal arguments give equal questions; a larger `count` appends questions. Raises `FibrationError` if the dataset has
    too few questions.
    """
    wanted = examples + count
    dataset = require("reasoning_gym").create_dataset(task.dataset, seed=seed, size=100 * wanted, **task.config)
    entries: dict[str, Any] = {}  # by question: small datasets repeat questions
    for entry in dataset:
        entries.setdefault(_text(task, entry), entry)
        if len(entries) == wanted:
            break
    else:
        raise FibrationError(
            f"task '{task.dataset}' has too few questions",
            required=f"{wanted} different ones, {examples} of them as examples",
            found=f"{len(entries)} among {len(dataset)}",
            remedy="ask for fewer, or widen Task.config",
        )
    asked = [(f"Question: {text}\nAnswer:", _completion(task, text, entry), entry) for text, entry in entries.items()]
    solved = "".join(f"{prompt} {completion}\n\n" for prompt, completion, _ in asked[:examples])
    return [
        Question(task, solved + prompt, completion, dataset, entry) for prompt, completion, entry in asked[examples:]
    ]


def _completion(task: Task, question: str, entry: Mapping[str, Any]) -> str:
    return task.completion.format(**{**entry["metadata"], "question": question, "answer": entry["answer"]})


def _text(task: Task, entry: Mapping[str, Any]) -> str:
    found = re.search(task.question, entry["question"].strip())
    if found is None:
        raise FibrationError(
            f"task '{task.dataset}' cannot be asked",
            required=f"a question that matches {task.question!r}",
            found=repr(entry["question"]),
            remedy="adapt Task.question to the installed release of reasoning-gym",
        )
    return " ".join(part.strip() for part in found.groups())


def require(module: str, *also: str) -> Any:
    """Returns the imported module. Raises `MissingDependency` if `module` or one of `also` is not installed."""
    for name in (module, *also):
        if importlib.util.find_spec(name) is None:
            raise missing(name)
    return importlib.import_module(module)


def missing(module: str) -> MissingDependency:
    """Returns the error with the package of a module and how to install it."""
    return MissingDependency(
        "rollouts cannot be recorded",
        required=f"the package {module.replace('_', '-')}",
        found="it is not installed",
        remedy="install fibration with its extra: pip install '.[record]' in its checkout",
    )
