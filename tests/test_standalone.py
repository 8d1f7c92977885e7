"""What `fibration compile -o` writes: files that work without the library, give the same bits, and say what they are."""

import json
import os
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
import torch

import fibration

needs_c = pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a C compiler")
BACKENDS = [pytest.param("c", marks=needs_c), "triton"]

USE = """
import sys, torch
sys.path.insert(0, {folder!r})
import {module} as loss
assert not any(m.split(".")[0] == "fibration" for m in sys.modules)
data = torch.load({data!r})
call = loss.run if hasattr(loss, "run") else lambda name, **given: getattr(loss, name)(**given)
layout = loss.lay_out("objective", data["offsets"], data["parents"], data.get("leaves")) | data.get("matrices", {{}})
tokens = {{k: data[k] for k in ("log_probs", "old_log_probs", "advantages")}}
torch.save(call("objective", **tokens, **data["parameters"], **layout), {out!r})
try:
    call("objective", log_prob=data["log_probs"])
except TypeError as error:
    assert "log_prob" in str(error)
else:
    raise AssertionError("an unknown argument was taken")
"""


def write(name, backend, folder, *more):
    command = [sys.executable, "-m", "fibration", "compile", name, "-b", backend, "-o", str(folder), *more]
    return subprocess.run(command, capture_output=True, text=True)


def alone(folder, module, data):
    """Run the module in a process that never sees the library."""
    torch.save(data, folder / "data.pt")
    script = USE.format(folder=str(folder), module=module, data=str(folder / "data.pt"), out=str(folder / "out.pt"))
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    subprocess.run([sys.executable, "-P", "-c", script], check=True, env=environment, cwd=Path("/"))
    return torch.load(folder / "out.pt")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["fiberpo", "fiberpo_domain"])
def test_the_files_give_the_same_bits_without_the_library(name, backend, tmp_path):
    torch.manual_seed(1)
    op = fibration.compile(fibration.load(name), backend=backend)
    lengths = torch.randint(1, 20, (12,))
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    n = int(offsets[-1])
    tokens = {"log_probs": -torch.rand(n), "old_log_probs": -torch.rand(n), "advantages": torch.randn(n)}
    labels, parents, strata = {}, {}, ["trajectory"]
    if name == "fiberpo_domain":
        group = torch.tensor([0, 1, 0, 1, 2, 2, 3, 0, 1, 2, 3, 3])  # not sorted: sums need an order
        domain = torch.tensor([1, 0, 1, 0])
        first = {int(d): i for i, d in reversed(list(enumerate(domain.tolist())))}
        labels = {"prompt_group": group.tolist(), "domain": domain[group].tolist()}
        parents = {("trajectory", "prompt_group"): group, ("prompt_group", "domain"): torch.tensor([0, 1, 0, 1])}
        assert first == {1: 0, 0: 1}  # elements are numbered as they first appear
        strata += ["prompt_group", "domain"]
    expected = op.coefficients(*tokens.values(), op.index(offsets=offsets, **labels), metrics=False)
    assert write(name, backend, tmp_path).returncode == 0
    parameters = {f"C_{s}_{word}_of": value for s in strata for word, value in (("plus", 0.2), ("minus", 0.1))}
    parameters = {k: torch.tensor([v], dtype=torch.float64) for k, v in (parameters | {"epsilon_of": 0.05}).items()}
    data = {**tokens, "parameters": parameters, "offsets": offsets, "parents": parents}
    result = alone(tmp_path, f"{name}_{backend}", data)
    assert torch.equal(result["coefficients"], expected.values)
    assert torch.equal(result["objective"].reshape(()).float(), expected.objective)


BRANCHING = ["fiberpo_modal", "fiberpo_crossed", "fiberpo_experts", "apc_obj"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", BRANCHING)
def test_trees_and_quivers_leave_the_library_too(name, backend, tmp_path):
    torch.manual_seed(2)
    h = fibration.load(name)
    op = fibration.compile(h, backend=backend)
    lengths = torch.randint(1, 20, (12,))
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    n = int(offsets[-1])
    tokens = {"log_probs": -torch.rand(n), "old_log_probs": -torch.rand(n), "advantages": torch.randn(n)}
    first, second = (
        torch.tensor([0, 1, 0, 1, 2, 2, 3, 0, 1, 2, 3, 3]),
        torch.tensor([0, 1, 1, 0, 2, 0, 1, 2, 2, 1, 0, 0]),
    )
    fine = torch.tensor([0, 1, 2])[torch.cat([torch.arange(3), torch.randint(0, 3, (n - 3,))])]
    labels, data = {}, {"parents": {}}
    if name == "fiberpo_modal":
        image = fine == 0
        labels = {"prompt_group": first.tolist(), "text_token": ~image, "image_token": image}
        data = {
            "parents": {("trajectory", "prompt_group"): first},
            "leaves": {"text_token": ~image, "image_token": image},
        }
    elif name == "fiberpo_crossed":
        labels = {"domain": first.tolist(), "modality": second.tolist()}
        data["parents"] = {("trajectory", "domain"): first, ("trajectory", "modality"): second}
    else:
        coarse = "expert" if name == "fiberpo_experts" else "state"
        labels, data["parents"] = {coarse: fine.tolist()}, {("token", coarse): fine}
    index = op.index(offsets=offsets, **labels)
    expected = op.coefficients(*tokens.values(), index, metrics=False)
    assert write(name, backend, tmp_path).returncode == 0
    mixes = op.programs["objective"].matrices
    data["matrices"] = {m.matrix: index.matrix(m.into, m.of) for m in mixes}
    assert bool(mixes) == (name == "fiberpo_crossed")
    parameters = {
        i.name: h.parameters[i.key[0]].default for i in op.programs["objective"].inputs if i.kind == "parameter"
    }
    channel = {"plus": "+", "minus": "-"}
    parameters = {
        f"{k}_of": torch.tensor([v[channel[k.rsplit("_", 1)[1]]] if isinstance(v, dict) else v], dtype=torch.float64)
        for k, v in parameters.items()
    }
    result = alone(tmp_path, f"{name}_{backend}", {**tokens, **data, "parameters": parameters, "offsets": offsets})
    assert torch.equal(result["coefficients"], expected.values)
    assert torch.equal(result["objective"].reshape(()).float(), expected.objective)


@pytest.mark.parametrize("backend", ["torch", *BACKENDS])
def test_the_certificate_names_every_file(backend, tmp_path):
    done = write("ppo", backend, tmp_path)
    assert done.returncode == 0, done.stderr
    certificate = json.loads((tmp_path / "ppo_certificate.json").read_text())
    files = {p.name for p in tmp_path.iterdir()} - {"ppo_certificate.json"}
    assert set(certificate["files"]) == files
    for name, digest in certificate["files"].items():
        assert sha256((tmp_path / name).read_bytes()).hexdigest() == digest
        assert str(tmp_path / name) in done.stdout
    assert certificate["module"] == f"ppo_{backend}.py"


def test_machine_code_comes_with_what_it_takes_of_the_chip(tmp_path):
    done = write("ppo", "triton", tmp_path, "--arch", "sm_90")
    assert done.returncode == 0, done.stderr
    certificate = json.loads((tmp_path / "ppo_certificate.json").read_text())
    assert {k["kernel"] for k in certificate["kernels"]} >= {"objective_sweep_1", "gate_sweep_1"}
    for kernel in certificate["kernels"]:
        stem = f"ppo_sm_90_{kernel['kernel']}"
        assert "sm_90" in (tmp_path / f"{stem}.ptx").read_text()
        assert (tmp_path / f"{stem}.cubin").read_bytes()[:4] == b"\x7fELF"
        assert 0 < kernel["registers"] <= 255
    assert "spilled bytes" in done.stdout


@pytest.mark.parametrize(
    ("backend", "arch", "words"),
    [("torch", "sm_90", "no architecture"), ("c", "sm_90", "leave --arch out"), ("triton", "sm_12", "'sm_12'")],
)
def test_an_architecture_that_a_backend_does_not_know_is_refused(backend, arch, words, tmp_path):
    done = write("ppo", backend, tmp_path / "out", "--arch", arch)
    assert done.returncode == 2
    assert words in done.stderr
    assert not (tmp_path / "out").exists()


def test_machine_code_is_not_printed():
    done = subprocess.run(
        [sys.executable, "-m", "fibration", "compile", "ppo", "-b", "triton", "--arch", "sm_90"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
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
def test_the_loader_says_what_does_not_fit(tmp_path):
    import importlib.util

    assert write("fiberpo", "c", tmp_path).returncode == 0
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
