"""The files of `fibration compile -o` work without the library, give the same bits, and describe themselves."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from oracles.backend_cases import triton_interprets
from ptx.parse import Address, parse
from thorough import ALL
from typer.testing import CliRunner

import fibration
from fibration import (
    Penalty,
    Stratum,
    absolute,
    after,
    before,
    exp,
    log_prob,
    mean,
    policies,
    quantile,
    token_log_ratio,
)
from fibration.backends import calling
from fibration.backends.triton.aot import BYTES
from fibration.cli.main import app
from fibration.compiler.arguments import KINDS
from fibration.pipeline import FURTHER, generate, load
from fibration.runtime.operator import Operator

needs_c = pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a C compiler")
BACKENDS = [pytest.param("c", marks=needs_c), "triton"]

USE = """
import importlib, sys, torch
folder = sys.argv[1]
sys.path.insert(0, folder)
results = {}
for module, data in torch.load(folder + "/data.pt").items():
    loss = importlib.import_module(module)
    assert not any(m.split(".")[0] == "fibration" for m in sys.modules)
    call = loss.run if hasattr(loss, "run") else lambda name, **given: getattr(loss, name)(**given)
    layout = loss.lay_out("objective", data["offsets"], data["parents"], data.get("leaves")) | data.get("matrices", {})
    tokens = {k: data[k] for k in ("log_probs", "old_log_probs", "advantages")} | data["policies"]
    assert all(name in (getattr(loss, "run", loss).__doc__ or "") for name in data["policies"])
    results[module] = call("objective", **tokens, **data["parameters"], **layout)
    every = tokens | data["parameters"] | layout
    vectors = [name for name in layout if name.startswith("count_") and layout[name].numel() > 1]
    for name, kind in (("log_prob", TypeError), *((name, ValueError) for name in vectors)):
        try:
            call("objective", **every | {name: torch.ones(len(layout.get(name, ())) + 1)})
        except kind as error:
            assert name in str(error)
        else:
            raise AssertionError(f"{name} was taken")
torch.save(results, folder + "/out.pt")
"""


def write(name, backend, folder, *more):
    done = CliRunner().invoke(app, ["compile", name, "-b", backend, "-o", str(folder), *more])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    return done


def alone(folder, data):
    """Run modules, each with its data, in a process that never sees the library."""
    torch.save(data, folder / "data.pt")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-P", "-c", USE, str(folder)]
    subprocess.run(command, check=True, env=environment, cwd=Path("/"))
    return torch.load(folder / "out.pt")


LENGTHS = torch.tensor([3, 17, 1, 8, 12, 5, 19, 2, 9, 14, 6, 11])
OFFSETS = torch.cat([torch.zeros(1, dtype=torch.int64), LENGTHS.cumsum(0)])
N = int(OFFSETS[-1])
FIRST = torch.tensor(
    [0, 1, 0, 1, 2, 2, 3, 0, 1, 2, 3, 3]
)  # elements in order of appearance, not sorted: sums need an order
SECOND = torch.tensor([0, 1, 1, 0, 2, 0, 1, 2, 2, 1, 0, 0])
FINE = torch.arange(N) * 7 % 10 % 3  # of tokens
FINE[:3] = torch.arange(3)

# The labels that an index takes, and what `lay_out` takes for them.
GIVEN = {
    "fiberpo": ({}, {}),
    "fiberpo_domain": (
        {"prompt_group": FIRST.tolist(), "domain": (FIRST % 2).tolist()},
        {"parents": {("trajectory", "prompt_group"): FIRST, ("prompt_group", "domain"): torch.tensor([0, 1, 0, 1])}},
    ),
    "fiberpo_modal": (
        {"prompt_group": FIRST.tolist(), "text_token": FINE > 0, "image_token": FINE == 0},
        {
            "parents": {("trajectory", "prompt_group"): FIRST},
            "leaves": {"text_token": FINE > 0, "image_token": FINE == 0},
        },
    ),
    "fiberpo_crossed": (
        {"domain": FIRST.tolist(), "modality": SECOND.tolist()},
        {"parents": {("trajectory", "domain"): FIRST, ("trajectory", "modality"): SECOND}},
    ),
    "fiberpo_experts": ({"expert": FINE.tolist()}, {"parents": {("token", "expert"): FINE}}),
    "fiberpo_tis": ({}, {}),
    "mis": ({}, {}),  # a statistic over trajectories, which have no gate
    "apc_obj": ({"state": FINE.tolist()}, {"parents": {("token", "state"): FINE}}),
}


GIVEN["by_quantiles"] = ({**GIVEN["fiberpo_domain"][0], "positions": torch.arange(N)}, GIVEN["fiberpo_domain"][1])


CURRENT, ROLLOUT = policies("current rollout")


def by_quantiles():
    """Tokens within two quantiles, of their domain and of the batch, and weighed by what comes before them, and before
    their trajectory; less penalties of tokens and of groups."""
    h, drift = fibration.load("fiberpo_domain"), absolute(token_log_ratio)
    inside = [drift <= quantile(drift, 0.8, over=Stratum(over)) for over in ("domain", "batch")]
    given_up = {**h.gives_up, "mask_open": "the largest are dropped from any batch"}
    x, group = log_prob(CURRENT) - log_prob(ROLLOUT), Stratum("prompt_group")
    penalties = {"kl": x * x / 2, "spread": Penalty(mean(x, over=group) ** 2, over=group)}
    earlier = mean(token_log_ratio, over=Stratum("trajectory"))
    orders = [
        before(token_log_ratio / 9, over=Stratum("trajectory"), discount=0.75),
        after(token_log_ratio / 99, over=Stratum("domain")),
        before(earlier / 9, over=Stratum("prompt_group"), of=Stratum("trajectory")),
    ]
    condition, weight = inside[0] & inside[1], exp(orders[0] + orders[1] + orders[2])
    given_up |= dict.fromkeys(
        (f"causal of weight {weight}", f"causal of condition {condition}"), "they are of many rows"
    )
    kept = h.objective.keep(condition).weigh(weight)
    return h.replace(name="by_quantiles", objective=kept, penalties=penalties, gives_up=given_up)


def defaults(op):
    """The parameters' defaults, as arguments of the generated functions."""
    program, found = op.programs["objective"], {}
    for i in program.inputs:
        if i.kind == "parameter":
            name, channel = i.key
            value = op.hierarchy.parameters[name].default
            value = value[channel] if isinstance(value, dict) else value
            found[f"{program.given[i]}_of"] = torch.tensor([value], dtype=torch.float64)
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_files_give_the_same_bits_without_the_library(backend, tmp_path):
    """Chains, a tree, quivers; losses of a third policy."""
    if backend == "triton" and not triton_interprets():
        pytest.skip("kernels are compiled where there is a GPU")
    torch.manual_seed(1)
    tokens = {"log_probs": -torch.rand(N), "old_log_probs": -torch.rand(N), "advantages": torch.randn(N)}
    expected, data = {}, {}
    shown = ["fiberpo_modal", "fiberpo_crossed", "by_quantiles"] + ["mis"] * (backend == "c")
    names = list(GIVEN) if ALL else shown
    (tmp_path / "by_quantiles.json").write_text(by_quantiles().model_dump_json())
    rollout = tokens["old_log_probs"] + 0.2 * torch.randn(N)
    for name in names:
        labels, layout = GIVEN[name]
        spec = str(tmp_path / "by_quantiles.json") if name == "by_quantiles" else name
        h = fibration.load(spec)
        made = generate(h, backend)  # files take any parameters, and have no programs that bounds allow
        op = Operator(h, h.verify(), backend, made.source, made.programs, load(made))
        assert write(spec, backend, tmp_path).exit_code == 0
        module, index = f"{name}_{backend}", op.index(offsets=OFFSETS, **labels)
        others = {"rollout": rollout} if op.hierarchy.policies else {}
        expected[module] = op.coefficients(*tokens.values(), index, policies=others, metrics=False)
        mixes = {m.word: index.matrix(m.into, m.of) for m in op.programs["objective"].matrices}
        assert bool(mixes) == (name == "fiberpo_crossed")
        parents = layout.get("parents", {})
        data[module] = {**tokens, **layout, "parents": parents, "matrices": mixes, "offsets": OFFSETS}
        data[module]["parameters"] = defaults(op)
        data[module]["policies"] = {f"{policy}_log_probs": given for policy, given in others.items()}
    found = alone(tmp_path, data)
    for module, result in found.items():
        assert torch.equal(result["coefficients"], expected[module].values), module
        assert torch.equal(result["objective"].reshape(()).float(), expected[module].objective), module
    assert len(found) == len(names)


@pytest.mark.parametrize("backend", ["torch", "jax", *BACKENDS])
def test_the_certificate_names_every_file(backend, tmp_path):
    done = write("ppo", backend, tmp_path)
    assert done.exit_code == 0, done.stderr
    certificate = json.loads((tmp_path / "ppo_certificate.json").read_text())
    files = {p.name for p in tmp_path.iterdir()} - {"ppo_certificate.json"}
    assert set(certificate["files"]) == files
    for name, digest in certificate["files"].items():
        assert sha256((tmp_path / name).read_bytes()).hexdigest() == digest
        assert str(tmp_path / name) in done.stdout
    assert certificate["module"] == f"ppo_{backend}.py"


def test_a_module_has_what_training_needs_and_more_if_asked(tmp_path):
    for more in ((), ("--functions",)):
        assert write("ppo", "torch", tmp_path, *more).exit_code == 0
        written = set(re.findall(r"^def (\w+)\(", (tmp_path / "ppo_torch.py").read_text(), re.MULTILINE))
        assert written >= {"objective", "evaluate"}
        assert written & set(FURTHER) == (set(FURTHER) if more else set())


# Lines of modules, as `fibration compile` writes them. They only go down.
LINES = {("grpo", "triton"): 370, ("grpo", "c"): 235, ("fiberpo_domain", "triton"): 1358, ("fiberpo_domain", "c"): 931}


def test_the_kinds_of_arguments_are_those_of_the_compiler():
    told = "source made MADE, may_lack True MAY_LACK, holds floats FLOATS, holds reals FLOAT64"
    for word, value, kinds in map(str.split, told.split(", ")):
        assert [k for k, row in KINDS.items() if str(getattr(row, word)) == value] == getattr(calling, kinds), kinds


@pytest.mark.sampled
@pytest.mark.thorough
@pytest.mark.parametrize(("name", "backend"), LINES)
def test_a_module_stays_as_short_as_it_is(name, backend, tmp_path):
    assert write(name, backend, tmp_path).exit_code == 0
    file = tmp_path / f"{name}_{backend}.{'c' if backend == 'c' else 'py'}"
    assert file.read_text().count("\n") <= LINES[name, backend]


@pytest.mark.thorough
def test_machine_code_comes_with_its_resources(tmp_path):
    done = write("ppo", "triton", tmp_path, "--arch", "sm_90")
    assert done.exit_code == 0, done.stderr
    certificate = json.loads((tmp_path / "ppo_certificate.json").read_text())
    kernels = {k["kernel"] for k in certificate["kernels"]}
    assert "objective_sweep_1" in kernels
    assert not any(k.startswith(FURTHER) for k in kernels)
    for kernel in certificate["kernels"]:
        stem = f"ppo_sm_90_{kernel['kernel']}"
        written = parse((tmp_path / f"{stem}.ptx").read_text())
        assert kernel["target"] == written.target == "sm_90a"  # of that chip alone
        parameters = ast.literal_eval(kernel["parameters"])
        assert [f"u{8 * BYTES.get(kind, 8)}" for kind in parameters.values()] == list(written.parameters.values())
        *own, scratch, other = parameters
        assert ("places" in own or "coarse" in kernel["kernel"]) and (scratch, other) == (
            "global_scratch",
            "profile_scratch",
        )
        read = [
            o.base.name
            for i in written.instructions
            for o in i.operands
            if i.opcode.startswith("ld.param") and isinstance(o, Address)
        ]
        assert read and not {*read} & {*list(written.parameters)[-2:]}  # null pointers do
        assert (tmp_path / f"{stem}.cubin").read_bytes()[:4] == b"\x7fELF"
        assert 0 < kernel["registers"] <= 255
    assert "spilled bytes" in done.stdout


@pytest.mark.parametrize(
    ("backend", "arch", "words"),
    [
        ("torch", "sm_90", "no architecture"),
        ("jax", "sm_90", "no architecture"),
        ("c", "sm_90", "leave --arch out"),
        ("triton", "sm_12", "'sm_12'"),
    ],
)
def test_an_unknown_architecture_is_refused(backend, arch, words, tmp_path):
    done = write("ppo", backend, tmp_path / "out", "--arch", arch)
    assert done.exit_code == 2
    assert words in done.stderr
    assert not (tmp_path / "out").exists()


def test_machine_code_is_not_printed():
    done = CliRunner().invoke(app, ["compile", "ppo", "-b", "triton", "--arch", "sm_90"])
    assert done.exit_code == 2
    assert "-o DIR" in done.stderr


MISTAKES = {
    "advantages per row without their rows": (dict(advantages=torch.ones(2)), ValueError, "advantages has 2"),
    "too few": (dict(old_log_probs=torch.zeros(3)), ValueError, "old_log_probs has 3"),
    "whole numbers": (dict(advantages=torch.ones(5, dtype=torch.int64)), TypeError, "advantages is torch.int64"),
    "offsets beyond the tokens": (dict(trajectory_offsets=torch.tensor([0, 3, 9])), ValueError, "end at 9"),
    "rows beyond the advantages": (
        dict(advantages=torch.ones(1), trajectory_rows=torch.tensor([0, 1])),
        ValueError,
        "row 1",
    ),
    "nothing": (dict(log_probs=None), TypeError, "lacks the argument log_probs"),
    "unknown": (dict(log_prob=torch.zeros(5)), TypeError, "no argument log_prob"),
}


@needs_c
def test_the_loader_names_an_argument_that_does_not_fit(tmp_path):
    import importlib.util

    assert write("fiberpo", "c", tmp_path).exit_code == 0
    place = importlib.util.spec_from_file_location("fiberpo_loader", tmp_path / "fiberpo_c.py")
    loss = importlib.util.module_from_spec(place)
    place.loader.exec_module(loss)
    layout = loss.lay_out("objective", torch.tensor([0, 3, 5], dtype=torch.int32), {})
    good = {
        "log_probs": torch.rand(5, 2)[:, 0],
        "old_log_probs": torch.zeros(5),
        "advantages": torch.ones(5),
        "epsilon_of": 0.05,
    }
    good |= {"C_trajectory_plus_of": 0.2, "C_trajectory_minus_of": torch.tensor(0.1), **layout}
    assert torch.isfinite(loss.objective(**good)["objective"]).all()
    per_row = {"advantages": torch.ones(2), "trajectory_rows": torch.tensor([0, 1], dtype=torch.int32)}
    assert torch.equal(loss.objective(**{**good, **per_row})["objective"], loss.objective(**good)["objective"])
    for what, (change, error, words) in MISTAKES.items():
        with pytest.raises(error, match=words):
            loss.objective(**{**good, **change})
            pytest.fail(what)
    with pytest.raises(ValueError, match="has a token"):
        loss.lay_out("objective", torch.tensor([0, 3, 3, 5]), {})
    of = {edge: torch.tensor([0, 2]) for edge in (("trajectory", "prompt_group"), ("prompt_group", "domain"))}
    with pytest.raises(ValueError, match="prompt_group 1: number those with elements"):
        loss.lay_out("objective", torch.tensor([0, 3, 5]), of)
