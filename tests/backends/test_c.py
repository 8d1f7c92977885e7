"""The C backend apart from its numbers: builds, caching, and messages of failures."""

import ctypes
import math
import platform
import shutil
import stat
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from support import token

import fibration
from fibration import Gate, Hierarchy, Parameter, cache, log_ratio, residual, tanh, token_mean
from fibration.backends.bodies import Language, ternary
from fibration.backends.c import build
from fibration.backends.c.language import OPERATORS, wide_constant
from fibration.compiler.fuse import sweeps
from fibration.errors import BackendError
from fibration.pipeline import best, programs
from fibration.runtime.batch import Batch

pytestmark = [
    pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a C compiler"),
    pytest.mark.usefixtures("shipped_c"),
]
TINY = "int answer(void) { return ANSWER; }"


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """An empty cache folder of this test's own."""
    monkeypatch.setenv("FIBRATION_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def small(op):
    index = op.index(offsets=torch.tensor([0, 3, 4]))
    x = torch.tensor([0.1, -0.2, 0.0, 0.05])
    return x, torch.zeros(4), torch.tensor([1.0, -1.0]), index


# ---------------------------------------------------------------- the cache


def test_a_cache_entry_is_complete_or_absent(own_cache):
    """Whoever sees its folder finds every file in it, however long writing them takes."""
    place, files = own_cache / "many", 1000
    own_cache.mkdir()

    def first_seen() -> int:
        while not place.exists():
            pass
        return len(list(place.iterdir()))

    def make(workshop):
        for i in range(files):
            (workshop / f"{i}").write_text("whole")

    with ThreadPoolExecutor(1) as pool:
        seen = pool.submit(first_seen)
        assert cache.entry("many", make) == place
        assert seen.result(60) == files + 1


def test_a_cache_that_is_not_a_folder_is_refused(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("x")
    monkeypatch.setenv("FIBRATION_CACHE", str(file))
    with pytest.raises(BackendError, match="cannot be written") as error:
        build.build(TINY, {"ANSWER": "1"})
    assert "FIBRATION_CACHE" in str(error.value)


def test_a_read_only_cache_is_read_and_not_written(own_cache, monkeypatch):
    library = build.build(TINY, {"ANSWER": "1"})

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(
        cache.tempfile, "mkdtemp", refuse
    )  # root may write anywhere: the folder's mode would not stop it
    assert build.build(TINY, {"ANSWER": "1"}) == library
    with pytest.raises(BackendError, match="Permission denied"):
        build.build(TINY, {"ANSWER": "2"})


def test_a_full_disk_leaves_nothing_behind(own_cache, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "_install", full)
    with pytest.raises(BackendError, match="No space left"):
        build.build(TINY, {"ANSWER": "1"})
    assert list(own_cache.iterdir()) == []


@pytest.mark.thorough
def test_processes_that_start_at_once_build_one_library(own_cache):
    script = textwrap.dedent("""
        from fibration.backends.c.build import build
        print(build("int answer(void) { return 7; }", {}))
    """)

    def start(_):
        return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    with ThreadPoolExecutor(3) as pool:
        told = set(pool.map(start, range(3)))
    assert len(told) == 1
    assert len(list(own_cache.iterdir())) == 1


# ---------------------------------------------------------------- compilers


def test_without_a_compiler_the_error_names_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(BackendError, match="no C compiler") as error:
        fibration.compile(fibration.load("ppo"), backend="c")
    assert "backend='torch'" in str(error.value)


def test_a_missing_compiler_is_named(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(BackendError, match="CC=no-such-compiler"):
        fibration.compile(fibration.load("ppo"), backend="c")


@pytest.mark.parametrize(
    ("cc", "said"), [('gcc "x', "No closing quotation"), ("gcc \\", "No escaped"), ('""', "no C compiler")]
)
def test_an_odd_variable_is_named(cc, said, monkeypatch, caplog):
    monkeypatch.setenv("CC", cc)
    with pytest.raises(BackendError, match=said) as error:
        build.compiler()
    assert f"CC={cc}" in str(error.value)
    assert best(gpu=False)[0] == "torch" and "CC=" in caplog.text


def test_a_failing_compiler_is_quoted_with_its_source(own_cache, monkeypatch, tmp_path):
    broken = tmp_path / "mycc"
    broken.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && { echo mycc 1; exit 0; }\necho "no such instruction" >&2\nexit 3\n'
    )
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CC", str(broken))
    op = fibration.compile(fibration.load("ppo"), backend="c")
    now, old, advantages, index = small(op)
    with pytest.raises(BackendError, match="no such instruction") as error:
        op.coefficients(now, old, advantages, index)
    kept = next(own_cache.glob("failed-*.c"))
    assert str(kept) in str(error.value)
    assert kept.read_text() == op.source


def test_each_compiler_has_its_own_cache_entry(own_cache, monkeypatch, tmp_path):
    first = build.build(TINY, {"ANSWER": "1"})
    other = tmp_path / "othercc"
    other.write_text('#!/bin/sh\n[ "$1" = --version ] && { echo othercc 1; exit 0; }\nexec cc "$@"\n')
    other.chmod(0o755)
    monkeypatch.setenv("CC", str(other))
    assert build.build(TINY, {"ANSWER": "1"}) != first


# ---------------------------------------------------------------- calls


def test_tensors_of_another_device_are_refused():
    op = fibration.compile(fibration.load("ppo"), backend="c")
    x, old, advantages, index = small(op)
    with pytest.raises(fibration.errors.BatchError, match="is on meta"):
        op.coefficients(x.to("meta"), old.to("meta"), advantages, index)


def test_an_index_on_another_device_is_refused():
    op = fibration.compile(fibration.load("ppo"), backend="c")
    x, old, advantages, index = small(op)
    elsewhere = torch.device("cuda", 0)
    object.__setattr__(index, "device", elsewhere)  # there is no such device here to put one on
    with pytest.raises(BackendError, match="compiled for the C backend, and the index lies on cuda:0") as error:
        op.calls.on(torch.device("cpu")).run("objective", Batch(index, {}, None, False, {}, torch.float32, 0.0))
    assert "backend='triton'" in str(error.value)


def test_a_backend_without_a_scalar_operator_is_refused():
    operators = {k: v for k, v in OPERATORS.items() if k != "tanh"}
    with pytest.raises(BackendError, match="lacks the scalar operator 'tanh'"):
        Language("C", operators, wide_constant, ternary)
    with pytest.raises(BackendError, match="has no use for the scalar operator 'sinh'"):
        Language("C", {**OPERATORS, "sinh": "sinh({})"}, wide_constant, ternary)


@pytest.mark.parametrize("name", ["tanh_real", "tanh_f32", "tanh_f64"])
def test_a_parameter_may_have_the_name_of_a_c_function(name):
    p = Parameter(name, default=0.5)
    h = Hierarchy(
        name="h", gates={token: Gate(p * tanh(residual / p))}, decomposition=log_ratio(), objective=token_mean()
    )
    op = fibration.compile(h, backend="c")
    x = torch.tensor([[0.1, -0.7]], dtype=torch.float64)
    index = op.index(mask=torch.ones(1, 2, dtype=torch.bool))
    for dtype in (torch.float32, torch.float64):
        torch.testing.assert_close(op.gate(x.to(dtype), index), torch.exp(0.5 * torch.tanh(x / 0.5)).to(dtype))


@pytest.mark.parametrize(("name", "rows", "longest"), [("fiberpo_domain", 200, 3000), ("gspo", 9000, 4)])
def test_threads_do_not_change_a_bit(name, rows, longest):
    """Of long rows one after the other, and of short ones in blocks, whose advantages are per token too."""
    op = fibration.compile(fibration.load(name), backend="c")
    torch.manual_seed(0)
    lengths = torch.randint(1, longest, (rows,))
    labels = {"prompt_group": [i // 4 for i in range(rows)], "domain": [i // 100 for i in range(rows)]}
    labels = labels if name == "fiberpo_domain" else {}
    index = op.index(offsets=[0, *lengths.cumsum(0).tolist()], **labels)
    now, advantages = torch.randn(int(lengths.sum())) * 0.2, torch.randn(rows)
    before, seen = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            for given in (advantages, advantages.repeat_interleave(lengths)):
                result = op.coefficients(now, torch.zeros_like(now), given, index)
                seen.append((result.values, result.objective, [float(m) for m in result.metrics.values()]))
    finally:
        torch.set_num_threads(before)
    for values, objective, metrics in seen[2:]:
        assert torch.equal(values, seen[0][0])
        assert torch.equal(objective, seen[0][1])
        assert metrics == seen[0][2]


@pytest.mark.parametrize("rows", [16384, 16385, 40_000])
def test_sums_over_many_rows_include_every_chunk(rows):
    """They are cut at every 16384; the largest ratio is in the last piece."""
    op = fibration.compile(fibration.load("ppo"), backend="c")
    x = torch.zeros(rows, dtype=torch.float64)
    x[-1] = 0.125
    index = op.index(offsets=torch.arange(rows + 1))
    result = op.coefficients(x, torch.zeros_like(x), torch.ones_like(x), index)
    assert float(result.objective) == pytest.approx(1 + math.expm1(0.125) / rows, rel=1e-12)
    assert float(result.metrics["kl"]) == pytest.approx(-0.125 / rows, rel=1e-12)
    assert float(result.metrics["gated_ratio/max"]) == pytest.approx(math.exp(0.125), rel=1e-12)


# ---------------------------------------------------------------- plans


def plan(name, program="objective"):
    h = fibration.load(name)
    return sweeps(programs(h)[program], h.rows.name)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "program", "expected"),
    [
        ("ppo", "objective", [1]),
        ("gspo", "objective", [2]),
        ("fiberpo", "objective", [3]),
        ("fiberpo", "evaluate", [3]),
        ("fiberpo_domain", "gate", [1, 1]),
        ("fiberpo_domain", "objective", [1, 1, 1]),
        ("fiberpo_domain", "evaluate", [1, 1, 1]),
    ],
)
def test_the_number_of_passes_over_the_tokens_is_as_planned(name, program, expected):
    """One number per sweep: the loops over a segment's tokens, of which all but the first find it in the cache."""
    assert [len(s.passes) for s in plan(name, program).sweeps] == expected


def test_only_sums_that_gates_compare_are_float64():
    passes = [p for s in plan("fiberpo_domain").sweeps for p in s.passes]
    assert [p.wide for p in passes] == [True, False, False]
    assert all(p.wide is False for s in plan("ppo").sweeps for p in s.passes)


def test_plans_print_their_stages_in_order():
    text = str(plan("fiberpo_domain"))
    assert text.splitlines()[0] == "plan of fiberpo_domain: 3 sweeps, 3 passes over the tokens"
    assert "sums over prompt_group by domain" in text
    assert text.count("pass (float64)") == 1


PROCESSORS = pytest.mark.skipif(platform.machine() != "x86_64", reason="names processors of this family")


@pytest.mark.parametrize(
    ("macro", "without", "having"),
    [
        pytest.param("__AVX__", "cc -march=x86-64", "cc -march=x86-64-v3", marks=PROCESSORS),
        ("__OPTIMIZE__", "cc -O0", "cc"),
    ],
)
def test_the_compilers_arguments_decide(own_cache, monkeypatch, macro, without, having):
    """They come before our flags, of which a later `-march=native` would win."""
    source = f"#ifdef {macro}\nint found(void) {{ return 1; }}\n#else\nint found(void) {{ return 0; }}\n#endif\n"
    for cc, found in ((without, 0), (having, 1)):
        monkeypatch.setenv("CC", cc)
        assert ctypes.CDLL(str(build.build(source, {}))).found() == found


@pytest.mark.parametrize("script", ["", "#!/bin/sh\nexit 0\n"], ids=["no program", "builds nothing"])
def test_a_compiler_that_writes_no_library_is_an_error(own_cache, monkeypatch, tmp_path, script):
    idle = tmp_path / "idlecc"
    idle.write_text(script)
    idle.chmod(0o755)
    monkeypatch.setenv("CC", str(idle))
    with pytest.raises(BackendError, match="C compiler"):
        build.build(TINY, {"ANSWER": "1"})
    assert not list(own_cache.glob("c-*"))


def test_gate_refuses_a_backward_pass_after_its_input_was_changed():
    op = fibration.compile(fibration.load("fiberpo"), backend="c")
    x, _, _, index = small(op)
    x = x.requires_grad_() * 1
    gated = op.gate(x, index)
    x.data_ptr()
    with torch.no_grad():
        x.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gated.sum().backward()
