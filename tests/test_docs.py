"""The documentation's examples run, and its numbers, tables and links are right."""

import json
import re
from fnmatch import fnmatch
from pathlib import Path
from pydoc import locate

import pytest
from support import said_of

import fibration
from fibration.language.loading import load, shipped
from fibration.laws import LAWS

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def first_hierarchy(edit=lambda text: text):
    scope = {}
    exec(edit(BLOCKS[0]), scope)
    return scope["my_loss"]


def test_the_published_schema_is_the_current_one():
    published = json.loads((ROOT / "docs" / "hierarchy.schema.json").read_text())
    assert published == fibration.Hierarchy.model_json_schema()


def is_there(name):
    """Whether a module or exported name exists. Trainers may be missing, so their `__all__` is read as text."""
    room, _, word = name.rpartition(".")
    if room in ("fibration.trainers.trl", "fibration.trainers.verl"):
        folder = ROOT / room.replace(".", "/")
        return (folder / f"{word}.py").exists() or f'"{word}"' in (folder / "__init__.py").read_text().split("__all__")[
            1
        ]
    if room == "fibration.trainers.torchrl":
        return f"class {word}(" in (ROOT / f"{room.replace('.', '/')}.py").read_text()
    return locate(name) is not None


def test_files_and_modules_named_in_pages_and_docstrings_exist():
    folders = [ROOT / name for name in ("backends", "fibration", "specs")]
    sources = [*ROOT.glob("*.py"), *(f for folder in folders for f in folder.rglob("*.py"))]
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    files = [f"/{f.relative_to(ROOT)}" for f in (*sources, *(ROOT / "docs").rglob("*.py"))]
    missing = []
    for page in (*pages, *sources):
        text = page.read_text()
        missing += [w for w in re.findall(r"`([\w/*]+\.py)`", text) if not any(fnmatch(f, f"*/{w}") for f in files)]
        missing += [w for w in re.findall(r"`(fibration(?:\.\w+)+)", text) if not is_there(w)]
    made = {"learn.py", "make_data.py", "my.py", "near.py", "reward.py", "weighted.py"}  # files that a reader makes
    made |= {"NAME.py", "NAME_search.py", "path.py"}  # placeholders
    made |= {"fibration_triton.py", "fibration_c.py", "fibration.h"}  # files that `fibration compile` writes
    assert set(missing) - made == {"compile.py"}  # design.md explains it


def test_the_readme_counts_the_losses():
    assert f"[{len(shipped())} losses](docs/losses.md)" in README


def test_the_readmes_first_hierarchy_verifies(capsys):
    assert first_hierarchy().verify().ok
    assert "my_loss: verified" in capsys.readouterr().out


def test_the_readmes_refusal_is_what_a_user_sees():
    wrong = first_hierarchy(lambda text: text.replace("0.04 * d * d / 2", "0.04 * d"))
    with pytest.raises(fibration.LawError) as refused:
        fibration.compile(wrong)
    assert str(refused.value) in README


@pytest.mark.parametrize(
    ("right", "wrong", "fact", "value"),
    [
        ("log_prob(old) - log_prob(rollout)", "log_prob(rollout) - log_prob(old)", "second_moment", "under old"),
        (
            "pessimistic_clip_gate(low, high)", "pessimistic_clip_gate(1 - low, 1 + high)", "radius",
            "min(log(2 + epsilon_high), -log(epsilon_low))",
        ),
        ("ratio_deviation()", "fibration.log_ratio()", "radius", "min(epsilon_high, epsilon_low)"),
    ],
)  # fmt: skip
def test_facts_show_the_slips_of_the_readme_that_no_law_finds(right, wrong, fact, value):
    report = first_hierarchy(lambda text: "import fibration\n" + text.replace(right, wrong)).verify()
    (said,) = (f.value for f in report.facts if f.name == fact)
    assert report.ok and value in said
    assert wrong.removeprefix("fibration.") in README
    assert value in (ROOT / "docs" / "facts.md").read_text()


@pytest.mark.thorough
def test_the_quiver_of_the_page_of_crossed_strata_verifies_and_needs_what_it_assumes():
    scope = {}
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "crossed.md").read_text(), re.DOTALL)
    exec(block, scope)
    bare = scope["crossed"].replace(assume=())
    assert [v.subject for v in bare.verify().verdicts if not v.accepted] == ["residual on trajectory"]


@pytest.mark.sampled
@pytest.mark.parametrize("name", shipped())
def test_a_spec_says_where_it_is_from_and_which_laws_it_gives_up(name):
    """A spec's docstring has its source, a formula, and the laws that `verify` says are given up."""
    text = said_of(name)
    (said,) = re.findall(r"All\slaws\s+hold(?:\s+but([^:;.]*))?[:,;.]", text)
    given_up = {v.law for v in load(name).verify().verdicts if v.given_up}
    assert set(re.findall(r"`(\w+)`", said)) & set(LAWS) == given_up
    assert re.search(r"\(.*(def:|app:|(?:19|20)\d\d)|^Ours.*(def:|rem:)", text, re.MULTILINE)
    assert re.search(r"`(J|𝒢\(r\)|log 𝒢) = |`min\(|`clip\(", text), "no formula"


def test_the_readmes_trainer_snippet_runs():
    import torch

    scope = {"my_loss": first_hierarchy()}
    exec(next(b for b in BLOCKS if "op.loss" in b), scope)
    scope["loss"].backward()
    # the weight exp(1) is truncated at 2, and the penalty's slope is 0.04·0.5
    expected = torch.tensor([[2 - 0.02, 2 - 0.02, 0], [-4 - 0.02, -4 - 0.02, -4 - 0.02]]) / 5
    torch.testing.assert_close(scope["log_probs"].grad, -expected)
    torch.testing.assert_close(scope["coef"], expected)


def anchors(page):
    """The anchors of a page's headings, as GitHub names them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = (re.sub(r"\[(.*?)\]\(.*?\)", r"\1", t) for t in re.findall(r"^#+ (.*)$", text, re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles}


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs").rglob("*.md")) + [ROOT / "README.md"], ids=lambda p: str(p.relative_to(ROOT))
)
def test_every_link_has_a_target(page):
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", page.read_text()):
        file = page.parent / target if target else page
        assert file.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(file), f"{page.name} links to {target}#{anchor}"


@pytest.mark.parametrize("page", [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"], ids=lambda p: p.name)
def test_every_row_of_a_table_is_under_its_header(page):
    for table in re.findall(r"(?:^\|.*\n)+", page.read_text(), re.MULTILINE):
        assert re.search(r"^.*\n\|[ :|-]+\|\n", table), table


def test_the_language_page_names_every_constructor_and_function():
    from fibration.language.grammar import CONSTRUCTORS

    page = (ROOT / "docs" / "language.md").read_text()
    others = ("audit", "audit_step", "compile", "lift", "load", "load_rollouts", "run")
    functions = [n for n in fibration.__all__ if n.islower() and n not in others]
    assert [n for n in (*CONSTRUCTORS, *functions) if not re.search(rf"`[^`]*\b{n}\b", page)] == []


def test_formulas_of_the_language_page_may_be_declared():
    """Each formula can stand where the page puts it, and its hierarchy reads back equal from JSON."""
    token, turn, episode, trajectory, prompt_group = fibration.strata("token turn episode trajectory prompt_group")
    current, old, reference = fibration.policies("current old reference")
    beta = fibration.Parameter("beta", default=0.1)
    gamma, lam = (fibration.Parameter(name, default=0.9, upper=1) for name in ("gamma", "lam"))
    value = fibration.Attribute("value", on=token, positive=False)
    scope = {n: getattr(fibration, n) for n in fibration.__all__} | {k: v for k, v in locals().items() if k != "n"}
    _plain, order, advantages, penalties = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "language.md").read_text(), re.DOTALL
    )
    found = []
    for block in (order, advantages, penalties):
        made = dict(scope)
        exec(block, made)
        found.append({k: v for k, v in made.items() if k not in scope and k != "__builtins__"})
    prefix, turns = found[0]["prefix_ratio"], found[0]["first_turns"]
    plain = fibration.load("ppo").replace(
        fibrations=[
            fibration.Fibration(token, turn, fibration.uniform()),
            fibration.Fibration(turn, episode, fibration.uniform()),
        ],
        gates={s: fibration.identity_gate() for s in (token, turn, episode)},
        groups=[prompt_group],
    )
    declared = [plain.replace(objective=objective) for objective in (fibration.token_mean().weigh(prefix), turns)]
    declared += [plain.replace(advantages=formula) for formula in found[1].values()]
    declared += [plain.replace(penalties=found[2]["penalties"])]
    assert len(declared) == 8
    for h in declared:
        assert fibration.Hierarchy.model_validate_json(h.model_dump_json()) == h


def test_the_bench_page_names_what_is_measured():
    from fibration.bench.baselines import BASELINES
    from fibration.bench.command import DEFAULT

    page = (ROOT / "docs" / "bench.md").read_text()

    def named(start, end):
        (part,) = re.findall(f"{start}(.*?){end}", page, re.DOTALL)
        return re.findall(r"`(\w+)`", part)

    assert f"{({4: 'four', 5: 'five', 6: 'six', 7: 'seven'})[len(DEFAULT)]} shipped losses" in page
    assert named("Without a SPEC,", "are measured") == list(DEFAULT)
    assert named("There is one for", "used only while") == list(BASELINES)


def test_the_measured_padding_is_that_of_the_samples():
    folder = ROOT / "docs" / "benchmarks"
    (said,) = re.findall(r"([\d.]+) times as many places as there are tokens", (folder / "README.md").read_text())
    results = json.loads((folder / "cpu_2_cores.json").read_text())["results"]
    padded = {r["positions"] / r["tokens"] for r in results if r["shape"]["layout"] == "padded"}
    assert {f"{p:.1f}" for p in padded} == {said}


def test_the_trust_region_pages_example_runs():
    import torch

    from fibration import trust_region

    page = (ROOT / "docs" / "trust_region.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    scope = {}
    exec(block, scope)
    expected = re.search(r"apc_regimes\(.*?# (\[.*?\])", block).group(1)
    assert str(eval(block.splitlines()[-1].split("#")[0], scope)) == expected
    assert scope["log_ratio"].grad.abs().max() > 0
    assert 0 < scope["update"].radius < trust_region.trpo_radius(0.9)
    assert torch.isfinite(scope["update"].deviation).all()
    named = set(re.findall(r"`(\w+)`", page))
    functions = {n for n in trust_region.__all__ if n.islower()}
    assert {n for n in functions if not n.startswith("kl_")} - named == set()


def test_the_page_of_ranks_without_torch_distributed_runs():
    import torch

    (block,) = re.findall(r"```python\n(import threading.*?)```", (ROOT / "docs" / "ranks.md").read_text(), re.DOTALL)
    scope = {}
    exec(block, scope)
    offsets, labels = [0, 3, 7, 11], {"prompt_group": ["a", "b", "a"], "domain": ["math"] * 3}
    log_probs = torch.cat([torch.linspace(-2, -1, n) for n in (7, 4)]).requires_grad_()
    arguments = (log_probs, torch.full((11,), -1.5), torch.ones(3), scope["op"].index(offsets=offsets, **labels))
    assert sum(scope["losses"]).item() == pytest.approx(scope["op"].loss(*arguments).loss.item(), abs=1e-7)


@pytest.mark.sampled
@pytest.mark.parametrize(
    "words",
    [
        "`gspo`",
        "`fiberpo_domain`",
        "`fiberpo_domain`, budgets",
        "`fiberpo_experts`",
        "`fiberpo_domain`, rows in pieces",
    ],
)
def test_the_page_of_ranks_has_the_right_numbers_sent(words):
    from fibration.pipeline import plan

    name, lie = re.match("`(.*)`", words).group(1), "cut" if "pieces" in words else "whole"
    page = (ROOT / "docs" / "ranks.md").read_text()
    (row,) = [line.strip("|").split("|") for line in page.splitlines() if re.match(rf"\| .*{words}[^|]* \|", line)
              and all((word in line) == (word in words) for word in ("pieces", "budgets"))]  # fmt: skip
    bounded = "_bounded" if words == "`fiberpo_domain`" else ""
    sent = {"trajectory": [], "expert": []}
    stages = plan(fibration.load(name), "objective" + bounded, ranks=lie).collectives
    for stage in stages:
        for stratum in {n.stratum for n in stage.values}:
            sent[stratum].append(str(sum(n.stratum == stratum for n in stage.values)))
    assert [c.strip() for c in row[1:]] == [str(len(stages)), *(" + ".join(n) for n in sent.values())]


def run_blocks(page, capsys, seen=str):
    """Run the blocks of a page in one session, and compare their output with their comments. Returns their names.

    `seen` maps a line to the text that is compared.
    """
    scope = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, scope)
        said = [m.rstrip() for m in re.findall(r"^(?:    print\(.*\)  )?# (.*)$", block, re.MULTILINE)]
        assert [seen(line) for line in capsys.readouterr().out.splitlines()] == [seen(line) for line in said]
    return scope


def test_the_tutorial_shows_the_output_of_its_blocks(capsys, monkeypatch):
    """Digits are not compared: samples may depend on the last bit of a processor's exponential."""
    from fibration.rollouts.replay import build_index, gate

    page = (ROOT / "docs" / "tutorial.md").read_text()
    drawn = []

    def run(spec, batch, out, parameters):
        """As `fibration.run`, but without pictures, which test_page.py of rollouts tests."""
        drawn.append(out)
        op = fibration.compile(fibration.load(spec))
        return gate(op, build_index(op, batch), batch, parameters).result.metrics

    monkeypatch.setattr(fibration, "run", run)
    scope = run_blocks(page, capsys, lambda line: re.sub(r"[\d.]+|True|False", "#", line))
    assert "domain/+/drift[domain=code]" in scope["result"].metrics
    assert drawn == ["pictures"]
    shown, wanted = (
        {name: float(m) for name, m in found.items()} for found in (scope["gated"], scope["result"].metrics)
    )
    assert shown == pytest.approx(wanted, rel=1e-4, abs=1e-6)


@pytest.mark.sampled
@pytest.mark.filterwarnings("ignore::fibration.PrecisionWarning")
@pytest.mark.parametrize(
    "page",
    [
        "backends",
        "batches",
        "facts",
        "how-to/configs-verl",
        "how-laws-are-decided",
        "how-to/audit_step",
        "how-to/configs",
        "how-to/dead-rows",
        "how-to/head",
        "laws",
        "metrics",
        "operator",
        "precision",
        "torch-compile",
        "what-is-my-loss",
        "which-loss-when",
    ],
)
def test_the_blocks_of_a_page_run_and_print_their_comments(page, capsys):
    """`laws` and `how-laws-are-decided` print whole reports too."""
    import torch

    old = torch.full((2, 3), -1.0)

    def policy(piece):
        return (old[piece] if isinstance(piece, slice) else piece).clone().requires_grad_()

    # of the loops of `operator`, the policy and the pieces are the reader's
    scope = {"policy": policy, "pieces": old.split(1), "sizes": 1, "micro_batches": [slice(0, 1), slice(1, 2)]}
    text = (ROOT / "docs" / f"{page}.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, scope)
        printed = iter(capsys.readouterr().out.splitlines())
        assert all(said in printed for said in re.findall(r"^# (.*)$", block, re.MULTILINE)), block


@pytest.mark.thorough
def test_the_page_of_jax_says_what_its_blocks_print(capsys, tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from fibration.cli.main import app

    page = (ROOT / "docs" / "how-to" / "jax.md").read_text()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("grpo", "grpo_rewards"):
        command = f"compile {name} --backend jax -o losses"
        assert f"fibration {command}" in page
        assert CliRunner().invoke(app, command.split()).exit_code == 0
    run_blocks(page, capsys)


@pytest.mark.thorough
def test_the_page_of_an_own_loss_says_what_its_blocks_print(capsys):
    page = (ROOT / "docs" / "how-to" / "own_loss.md").read_text()
    assert run_blocks(page, capsys)["op"].hierarchy.name == "my_loss"


@pytest.mark.thorough
def test_the_page_of_micro_batches_says_what_its_blocks_print(capsys):
    """One process here; `processes/worker.py` runs the page's loop on several."""
    page = (ROOT / "docs" / "how-to" / "ddp.md").read_text()
    scope = run_blocks(page, capsys, lambda line: re.sub(r"\d+", "#", line))
    assert scope["check"]() > 0.05


@pytest.mark.thorough
def test_the_page_of_adaptive_budgets_says_what_its_blocks_print(capsys):
    page = (ROOT / "docs" / "how-to" / "adaptive_budgets.md").read_text()
    scope = run_blocks(page, capsys, lambda line: re.sub(r"[\d.]+", "#", line))
    algebra, code, logic = (scope["budgets"][name] for name in scope["DOMAINS"])
    assert min(code) > 2 * max(algebra) > 4 * max(logic)
    assert len(set(scope["budgets"].values())) == 4


def test_the_page_of_loggers_says_what_its_blocks_print(capsys, tmp_path, monkeypatch):
    """The loggers are stand-ins that record their arguments. Names must be valid for MLflow."""
    import sys
    from types import SimpleNamespace

    kept = {"wandb": {}, "tensorboard": {}, "mlflow": {}}
    run = SimpleNamespace(log=lambda numbers, step: kept["wandb"].update(numbers), finish=lambda: None)
    writer = SimpleNamespace(add_scalar=lambda n, v, step: kept["tensorboard"].update({n: v}), close=lambda: None)
    for name, words in {
        "wandb": {"init": lambda project, mode: run},
        "torch.utils.tensorboard": {"SummaryWriter": lambda folder: writer},
        "mlflow": {"log_metrics": lambda numbers, step: kept["mlflow"].update(numbers)},
    }.items():
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**words))
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "how-to" / "logging.md").read_text()
    scope = run_blocks(page, capsys, lambda line: re.sub(r"\d+%", "#", line))
    *_, last = (json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert last["step"] == 2 and len(last) == 14 and last["fibration/token/clipped"] > 0
    assert kept["wandb"] == kept["tensorboard"] == scope["numbers"]
    assert list(kept["mlflow"].values()) == list(scope["numbers"].values())
    assert all(re.fullmatch(r"[\w/. :-]+", name) for name in kept["mlflow"])
    assert "fibration/domain/up/drift/code" in kept["mlflow"]


def test_the_page_of_what_goes_wrong_says_what_its_blocks_print(capsys):
    page = (ROOT / "docs" / "what-goes-wrong.md").read_text()
    assert run_blocks(page, capsys)["grpo"].name == "grpo"


@pytest.mark.thorough
def test_the_page_of_three_policies_says_what_its_blocks_print(capsys):
    page = (ROOT / "docs" / "mismatch.md").read_text()
    assert len(run_blocks(page, capsys)["mine"]) == 7
    names = set(re.findall(r"`(\w+)`", page)) & set(shipped())
    assert {"fiberpo_tis", "fiberpo_domain_tis"} <= names


@pytest.mark.thorough
def test_the_page_of_penalties_adds_a_term_over_the_whole_vocabulary():
    """Micro-batches of any size give the gradient of one loss over the whole batch, off policy."""
    import torch

    page = (ROOT / "docs" / "penalties.md").read_text()
    first, block = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    scope = {"fibration": fibration}
    exec(first, scope)
    scope["h"].verify(None).raise_for_status()
    exec(block, scope)
    generator = torch.Generator().manual_seed(0)
    normal = {"generator": generator, "dtype": torch.float64}
    tokens, mask = (
        torch.randint(5, (4, 3), generator=generator),
        torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 0]]),
    )
    table, other = (torch.randn(3, 5, **normal) for _ in range(2))
    old, advantages = -2 * torch.rand(4, 3, **normal), torch.randn(4, **normal)
    gradients = []
    for pieces in ([slice(0, 4)], [slice(0, 1), slice(1, 4)], [slice(i, i + 1) for i in range(4)]):
        weights = table.clone().requires_grad_()
        models = (lambda t, w=weights: w.expand(*t.shape, 5), lambda t: other.expand(*t.shape, 5))
        scope["step"](*models, tokens, mask.bool(), old, advantages, pieces)
        gradients.append(weights.grad)
    weights = table.clone().requires_grad_()
    every, fixed = weights.log_softmax(-1).expand(4, 3, 5), other.log_softmax(-1).expand(4, 3, 5)
    ratio = torch.exp(every.gather(-1, tokens[..., None])[..., 0] - old)
    a = advantages[:, None]
    terms = torch.minimum(ratio * a, ratio.clamp(1 - 0.2, 1 + 0.2) * a)
    terms = terms - 0.05 * (every.exp() * (every - fixed)).sum(-1) - 0.01 * (every.exp() * every).sum(-1)
    rows = [terms[i][mask[i] > 0].mean() for i in (0, 1, 3)]
    (-sum(rows) / 3).backward()
    assert all(torch.allclose(g, weights.grad, rtol=1e-12, atol=1e-15) for g in gradients)


def test_the_page_of_penalties_says_what_the_law_decides():
    import fibration as f

    page = (ROOT / "docs" / "penalties.md").read_text()
    current, _, reference = f.policies("current old reference")
    scope = {**{n: getattr(f, n) for n in ("exp", "expm1", "log_prob", "token_log_ratio")}, "current": current}
    scope["x"] = f.log_prob(current) - f.log_prob(reference)
    rows = re.findall(r"^\| `(.*?)`.* \| (proved|refuted) \|$", page, re.MULTILINE)
    h = f.load("grpo").replace(penalties={f"p{i}": eval(formula, scope) for i, (formula, _) in enumerate(rows)})
    found = {v.subject: v.status for v in h.verify(None).verdicts if v.law == "kl_gradient"}
    assert found == {f"penalty 'p{i}'": said for i, (_, said) in enumerate(rows)}
    assert len(found) == 6
