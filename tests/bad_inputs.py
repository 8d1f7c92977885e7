"""600 inputs that no command can use, by kind: each kind is a small table of values and of places to put them."""

from __future__ import annotations

import itertools
import json
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from fibration import load

LONG, DEEP, DIGITS = "x" * 20_000, 3_000, "9" * 5_000
TRL, VERL = "trl:in.yaml", "verl:in.yaml"


@dataclass(frozen=True)
class Bad:
    """The words of a command, and the files that it finds: their contents, or what `make` makes in the folder."""

    words: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)
    make: str = ""  # "fifo", "folder" or "zero": what `in.*` is instead of a file

    def prepare(self, folder: Path) -> None:
        for name, contents in self.files.items():
            place = folder / name
            if self.make == "fifo":
                os.mkfifo(place)
            elif self.make == "folder":
                place.mkdir()
            elif self.make == "zero":
                place.symlink_to("/dev/zero")
            else:
                place.write_bytes(contents)


def yaml_texts() -> Iterator[Bad]:
    laughs = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
    texts = [
        "", "- beta", "beta", "3", "null", "beta: [", "beta: {", "beta: 'x", 'beta: "\\q"', "a: b: c", "\ta: 1",
        "beta: *none", "a: &a [*a]", "a: &a {b: *a}", "? [a]\n: 1", "? {a: 1}\n: 1", laughs, "a: 1\na: 2",
        "beta: 0.1\n'beta': 0.2", "a: {b: 1, b: 2}", "<<: [1]", "<<: *x", "a: 1\n---\nb: 2", "%YAML 9.9\n---\na: 1",
        "!!python/object:os.system {}", "a: !!python/name:os.system", "a: !mine 1", "a: !!timestamp soon",
        "a: !!int ''", "a: !!float x", "a: !!bool perhaps", "a: !!binary '?'", "a: !!timestamp 2020-99-99",
        f"beta: {DIGITS}", f"beta: -{DIGITS}", f"{DIGITS}: 1", f"x: {'[' * DEEP}{']' * DEEP}", f"x: {'[' * DEEP}",
        f"x: {'{a: ' * DEEP}1{'}' * DEEP}", "".join(f"{' ' * i}a:\n" for i in range(900)), "- " * DEEP,
        "a: \0", "a: \x1b[31m", "beta: 2020-99-99\n", "beta: 2020-01-01", "beta: .nan", "beta: .inf", "beta: {}",
        "beta: [1]", f"beta: {LONG}", f"{LONG}: 1", f"beta: 1{'0' * 400}", "a: 1\n" * 300_000, f"a: '{'y' * 1_100_000}'",
        *(f"? {x}\n: 1" for x in ("1", "true", "null", "1.5")), "[" * 100_000, "beta: 0x" + "f" * 5_000,
    ]  # fmt: skip
    for text, spec in itertools.product(texts, (TRL, VERL)):
        given = text.replace("beta:", "actor_rollout_ref.actor.clip_ratio_c:") if spec == VERL else text
        if (spec, text) != (VERL, "beta: {}"):  # which has no options
            yield Bad(("show", spec), {"in.yaml": given.encode()})
    for raw in (b"\xff\xfe\x00", b"a: \xc3", b"\x80", "beta: 1".encode("utf-32"), bytes(range(256)), b"\0"):
        yield Bad(("verify", TRL), {"in.yaml": raw})


def overrides() -> Iterator[Bad]:
    values = [
        "2020-99-99", "2020-01-01", "[1,[", "{", "}", "[", "*a", "&a [*a]", "!!python/name:os.system", "!!int x", DIGITS,
        "[" * DEEP, f"{'[' * DEEP}{']' * DEEP}", "{a: 1, a: 2}", ".nan", ".inf", "-.inf", "", "~", "x", "'x", "[1]", "{}",
        "\0", "\x1b[31m", LONG, f"1{'0' * 400}", "0x" + "f" * 5_000, "a: b", "- - - -", "%", "@x", "`x`", "true",
    ]  # fmt: skip
    keys = {TRL: ("beta", "epsilon"), VERL: ("actor_rollout_ref.actor.clip_ratio_c",)}
    for spec, value in itertools.product(keys, values):
        for key in keys[spec]:
            if (spec, value) != (VERL, "{}"):
                yield Bad(("show", spec, f"{key}={value}"), {"in.yaml": b"{}"})
    for key in ("a" + ".a" * 5_000, LONG, "no_such_option", "beta.x", "a..b"):
        for spec in (TRL, VERL):
            yield Bad(("show", spec, f"{key}=1"), {"in.yaml": b"{}"})


def json_texts() -> Iterator[Bad]:
    ppo = load("fiberpo_domain").model_dump_json()
    unknown = {f"key{i}": i for i in range(40_000)}
    texts = [
        "", "[]", "{", "{}", "1", "null", '"x"', "NaN", "{'a': 1}", '{"a": 1,}', '{"a": 1} {"a": 2}', "[" * 100_000,
        f"{'[' * 900}{']' * 900}", f'{{"name": {DIGITS}}}', json.dumps(unknown), json.dumps({**json.loads(ppo), **unknown}),
        ppo[:-1], ppo.replace('"name":', '"name": "a", "name":', 1), ppo.replace('"lower":', '"lower": 0, "lower":', 1),
        f'{{"gates": {"{" * 500}', '{"gates": {"token": ' + '{"a":' * 900 + "1" + "}" * 902,
        "{" + '"a": {"b": 1, "b": 2}, ' * 20_000 + '"c": 1}', json.dumps({LONG: 1}), ppo.replace("{", '{"' + LONG + '": 1,', 1),
        '"\\ud800"', '{"\\ud800": 1}', "\ufeff\ufeff{}", "{\0}", '{"a": 1e999999}', '{"a": Infinity}', f'{{"a": -{DIGITS}}}',
    ]  # fmt: skip
    for text in texts:
        yield Bad(("verify", "in.json"), {"in.json": text.encode()})
    for raw in (b"\xff\xfe", b"\xff", '{"a": 1}'.encode("utf-16"), b"{" * 1_100_000, bytes(range(256))):
        yield Bad(("verify", "in.json"), {"in.json": raw})


def json_fields() -> Iterator[Bad]:
    whole = load("fiberpo_domain").model_dump(mode="json")
    deep: object = 1
    for _ in range(100):
        deep = [deep]
    values = {"deep": deep, "long": LONG, "bracket": "(", "half": "\ud800", "number": 3.5, "bool": True, "nul": "a\0b"}
    values |= {"code": "__import__('os').system('x')", "nested": {"a": {"b": 1}}, "list": [[None]], "huge": 10**400}
    for name, value in itertools.product((*whole, "penalties", "policies", "unknown_key"), values.values()):
        yield Bad(("verify", "in.json"), {"in.json": json.dumps({**whole, name: value}).encode()})
    for value in ("1e400", "NaN", DIGITS, "-Infinity", '"x"', "[]", "{}", f'"{LONG}"'):
        for name in ("default", "lower", "upper"):
            text = json.dumps(whole).replace(f'"{name}": ', f'"{name}": {value}, "was": ', 1)
            yield Bad(("verify", "in.json"), {"in.json": text.encode()})


def rollouts_files() -> Iterator[Bad]:
    columns = {
        "log_probs": -np.ones(4, np.float32),
        "old_log_probs": -np.ones(4, np.float32),
        "offsets": np.array([0, 4]),
    }
    meta = {"format": "fibration.rollouts/2", "labels": "{}", "provenance": "{}"}
    good = save(columns, meta)
    size = int.from_bytes(good[:8], "little")
    header = json.loads(good[8 : 8 + size])

    def headed(change: object = None, data: bytes = good[8 + size :], **entries: object) -> bytes:
        text = json.dumps({**header, **entries} if change is None else change).encode()
        return struct.pack("<Q", len(text)) + text + data

    entry = header["log_probs"]
    raws = [
        b"", b"\0", b"x" * 100, good[:20], good[:-1], good[: 8 + size], good + b"x", struct.pack("<Q", 1 << 62) + good[8:],
        struct.pack("<Q", 0), struct.pack("<Q", 10) + b"{" * 10, headed([]), headed({}), headed("x"), b"PK\3\4" + good,
        headed(log_probs={**entry, "data_offsets": [0, 8]}), headed(log_probs={**entry, "data_offsets": [16, 0]}),
        headed(log_probs={**entry, "data_offsets": [-1, 15]}), headed(log_probs={**entry, "shape": [-4]}),
        headed(log_probs={**entry, "shape": [2**40]}), headed(log_probs={**entry, "shape": [2, 2]}),
        *(headed(log_probs={**entry, "dtype": d}) for d in ("F8_E4M3", "F64", "I32", "U8", "Q4", "BOOL", 3, None)),
        *(
            headed(log_probs={"dtype": d, "shape": [n], "data_offsets": entry["data_offsets"]})
            for d, n in (("F8_E4M3", 16), ("F8_E5M2", 16), ("F8_E8M0", 16), ("F4", 32), ("C64", 2), ("U16", 8), ("F16", 8))
        ),
        *(headed(__metadata__={**meta, "labels": text}) for text in ("[]", "{", "[" * 100_000, DIGITS, "x\0", "NaN")),
        *(headed(__metadata__={**meta, "provenance": text}) for text in ("{", "[" * 100_000, DIGITS, "")),
        *(headed(__metadata__={**meta, "format": text}) for text in ("", "x\0\x1b[31m", LONG, "fibration.rollouts/3")),
        headed(__metadata__={**meta, "la\0bel\x1b": "{}"}), headed(__metadata__=None), headed(__metadata__=3),
        headed({"\0\x1b": entry}), headed({LONG: entry, "__metadata__": meta}),
    ]  # fmt: skip
    for wrong in (np.nan, np.inf, 1.0):
        raws.append(save({**columns, "log_probs": np.array([-1, wrong, -1, -1], np.float32)}, meta))
    for offsets in ([0], [1, 4], [0, 5], [0, 3, 2, 4], [0, -1, 4], []):
        raws.append(save({**columns, "offsets": np.array(offsets, np.int64)}, meta))
    labels = {**columns, "label/domain": np.zeros(1, np.int32)}
    for names in ([], [["a"]] * 2, [None], "x", [[[]] * 2], 3, [float("inf")]):
        raws.append(save(labels, {**meta, "labels": json.dumps({"domain": names})}))
    raws.append(save(labels, {**meta, "labels": f'{{"domain": [{"[" * 400}{"]" * 400}]}}'}))
    for raw in raws:
        yield Bad(("run", "ppo", "--rollouts", "in.safetensors", "--out", "out"), {"in.safetensors": raw})


def kinds_of_files() -> Iterator[Bad]:
    commands = {
        "in.yaml": (("show", TRL), ("verify", VERL), ("compare", TRL, "ppo"), ("audit", "f.py:f", "--as", TRL)),
        "in.json": (("verify", "in.json"), ("show", "in.json"), ("compare", "ppo", "in.json"), ("compile", "in.json")),
        "in.py": (("verify", "in.py"), ("show", "in.py:x"), ("audit", "in.py:f")),
        "in.safetensors": (("run", "ppo", "--rollouts", "in.safetensors", "--out", "out"),),
    }
    for name, each in commands.items():
        for words, make in itertools.product(each, ("fifo", "folder", "zero", "nothing")):
            if (make, words) not in {("folder", ("verify", "in.py"))}:
                yield Bad(words, {} if make == "nothing" else {name: b""}, make)


def python_files() -> Iterator[Bad]:
    bodies = [
        "", "1 +", "\0", "raise SystemExit(0)", "import os; os._exit(0)", "raise MemoryError", "1/0", "import no_such_module",
        "def f(): f()\nf()", f"raise ValueError('{LONG}')", "raise ValueError('\\0\\x1b[31m')", "import sys; sys.exit()",
        "assert False", "raise BaseException", "raise GeneratorExit", "x = 1", "from fibration import Stratum\nStratum('a b')",
        "from fibration import *\nStratum('x' * 20_000)", f"x = {'(' * 300}", "exit()", "quit()", "raise StopIteration",
        "from fibration import load\nload('nothing')", "from fibration import *\na, = strata('a')\nHierarchy(name='a')",
        "from fibration import load\na = load('ppo')\nb = load('grpo')", "class A: pass\nraise type('E', (Exception,), {})()",
    ]  # fmt: skip
    for body in bodies:
        yield Bad(("show", "in.py"), {"in.py": body.encode()})
        yield Bad(("audit", "in.py:missing"), {"in.py": body.encode()})


HEAD = b"import os, sys, torch\ndef right(x, a, m): return -(x * a[:, None] * m).sum() / m.sum()\n"
BACKWARD = """
class Odd(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.sum()

    @staticmethod
    def backward(ctx, gradient):
        {}

def loss(log_probs, advantages, mask): return Odd.apply(log_probs)
"""


def functions() -> Iterator[Bad]:
    returns = [
        "None", "()", "[]", "{}", "'x'", "3", "3.0", "torch.tensor(3)", "torch.tensor(True)", "right * 1j", "right.item()",
        "right.detach()", "right * float('nan')", "right / 0", "right.to('meta')", "right.reshape(1).to_sparse()", "(None, right)",
        "{'Loss': right}", "log_probs", "log_probs[:0]", "iter([right])", "right.to(torch.complex64)", "lambda: right",
        "torch.rand(()) * right", "torch.tensor([])", "float('inf') * right", "object()", "right.to('cuda:99')",
    ]  # fmt: skip
    raises = [
        "sys.exit(0)",
        "os._exit(0)",
        "1/0",
        "raise MemoryError",
        "raise BaseException",
        f"raise ValueError('{LONG}')",
    ]
    raises += [
        "raise ValueError('\\0\\x1b[31m')",
        "return loss(log_probs, advantages, mask)",
        "raise StopIteration",
        "[][1]",
    ]
    backward = [
        "sys.exit(0)",
        "os._exit(0)",
        "1/0",
        "raise RuntimeError('x')",
        "return 'a'",
        "return None",
        "raise BaseException",
    ]
    backward += [
        "return torch.ones(3)",
        "return torch.ones(ctx.shape).to('meta')",
        "return torch.ones(ctx.shape) * 1j",
        "return 1, 2",
    ]
    signatures = [
        "x",
        "log_probs",
        "log_probs, mask",
        "*arguments",
        "**arguments",
        "log_probs, advantages, mask, what, /",
    ]
    signatures += ["log_probs, logprobs, advantages, mask", "a, b, c, d, e", ""]
    call = "right(log_probs, advantages, mask)"
    for value in returns:
        text = f"def loss(log_probs, advantages, mask):\n  value = {call}\n  return {value.replace('right', 'value')}"
        yield Bad(("audit", "in.py:loss"), {"in.py": HEAD + text.encode()})
    for body in raises:
        yield Bad(("audit", "in.py:loss"), {"in.py": HEAD + f"def loss(log_probs, advantages, mask): {body}".encode()})
    for body in backward:
        yield Bad(("audit", "in.py:loss"), {"in.py": HEAD + BACKWARD.format(body).encode()})
    for names in signatures:
        yield Bad(("audit", "in.py:loss"), {"in.py": HEAD + f"def loss({names}): return 0".encode()})


def numbers_and_formulas() -> Iterator[Bad]:
    fine = {"in.py": HEAD + b"def loss(log_probs, advantages, mask): return right(log_probs, advantages, mask)"}
    for value in (
        "[" * DEEP,
        f"{'[' * DEEP}{']' * DEEP}",
        "{",
        "",
        "x",
        DIGITS + "x",
        '{"+": 1, "+": 2}',
        LONG,
        "\0",
        "1e",
        "--1",
    ):
        yield Bad(("audit", "in.py:loss", "--as", "ppo", "--param", f"epsilon_low={value}"), fine)
    for value in ("nan", "inf", "-1", "0", DIGITS, "[1]", '"x"', "true", "null"):
        yield Bad(("audit", "in.py:loss", "--as", "ppo", "--param", f"epsilon_low={value}"), fine)
    for value in ("0", "-1", "nan", "x", ""):
        yield Bad(("audit", "in.py:loss", "--timeout", value), fine)
        yield Bad(("verify", "ppo", "--timeout", value))
    conditions = [
        "(",
        ")",
        "x",
        "1",
        "advantage",
        "advantage >",
        "advantage >= >= 0",
        "(" * DEEP,
        "-" * DEEP + "1 > 0",
        LONG,
        "\0",
        "é > 0",
    ]
    conditions += [
        DIGITS,
        f"advantage > {DIGITS}",
        "advantage > 1e9999",
        "advantage ** 99 > 0",
        "equal()",
        "equal(x)",
        "one(x, y)",
        "advantage=",
    ]
    conditions += [
        "same(a, b)",
        "on_policy(1)",
        "count() > 1",
        "count(token, over=nothing) > 1",
        "advantage > 'a'",
        "__import__('os')",
        "",
    ]
    for condition in conditions:
        yield Bad(("compare", "grpo", "dapo", "--when", condition))


KINDS = {
    "YAML files": yaml_texts,
    "overrides": overrides,
    "JSON texts": json_texts,
    "JSON fields": json_fields,
    "rollouts": rollouts_files,
    "no files": kinds_of_files,
    "Python files": python_files,
    "functions": functions,
    "numbers, formulas": numbers_and_formulas,
}
