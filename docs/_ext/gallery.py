"""A page for every shipped loss, and its picture: what `docs/losses/` says of it, its formula, verdicts and use.

The pages are made anew by every build, as `docs/gallery/NAME.myst`, which git ignores. What a page tells users
to write is run.
"""

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

import fibration
from fibration import Hierarchy, Operator, Report, TrainerError
from fibration.files import write_file
from fibration.language.hierarchy import adds_up_tokens
from fibration.language.loading import shipped_file
from fibration.laws import LAWS
from fibration.plotting.canvas import page as contents
from fibration.plotting.figures import make
from fibration.plotting.gate_curve import removes
from fibration.printing.latex import latex
from fibration.printing.law_table import legend, marks
from fibration.printing.text import quiver, tree
from fibration.trainers.intake import refuse_finer, wanted

DOCS = Path(__file__).resolve().parents[1]
FOLDER = DOCS / "gallery"
ARXIV = re.compile(r"(?<![\w./])(\d{4}\.\d{5})(?![\w.]*\d)")
TEXTS = re.compile(r"^## .*", re.MULTILINE | re.DOTALL)
PAGES = DOCS / "losses"
B, T = 4, 3  # the batch on which a page's code is run


class Loss(NamedTuple):
    """A loss of `docs/losses/`: its line, as Markdown, and its text."""

    name: str
    family: str
    summary: str
    trainers: str
    said: str


def losses(families: Mapping[str, str]) -> dict[str, Loss]:
    """Every loss, by its name; `families` has the text of each family's page."""
    found = {}
    for family, text in families.items():
        said = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
        listed = re.findall(r"^- \[(\w+)\]\(#\w+\): (.*?\.)(?: \(([^()]*)\))?$", text, re.MULTILINE)
        found |= {name: Loss(name, family, *line, said[name].strip()) for name, *line in listed}
    return found


def pages() -> dict[str, str]:
    """The pages of families, in the order of the table of `docs/losses.md`."""
    order = re.findall(r"^\| \[\w+\]\(losses/(\w+)\.md\)", (DOCS / "losses.md").read_text(), re.MULTILINE)
    return {family: (PAGES / f"{family}.md").read_text() for family in order}


def on_site(text: str, family: str, found: Mapping[str, Loss]) -> str:
    """The page of a family, or of all of them (`family` is ""), where every loss has a page of its own."""
    if not family:
        return re.sub(r"\(losses/\w+\.md#(\w+)\)", r"(gallery/\1.myst)", text)
    text = re.sub(r"\[(\w+)\]\(#\1\)", r"[\1](../gallery/\1.myst)", TEXTS.sub("", text))
    listed = "\n".join(f"/gallery/{loss.name}" for loss in found.values() if loss.family == family)
    return f"{text}\n```{{toctree}}\n:hidden:\n\n{listed}\n```\n"


def use(h: Hierarchy) -> str:
    """What a loop of one's own writes, by names that say what they hold."""
    labels = [f"{s}={s}_of_{'rows' if s in _of_rows(h) else 'tokens'}" for s in wanted(h)]
    leaves = [f"{s.name}={s.name}_mask" for s in h.leaves] if len(h.leaves) > 1 else []
    attributes = ", ".join(f'"{a}": {a}' for a in h.attributes)
    given = ["mask=mask", *leaves, *labels, *([f"attributes={{{attributes}}}"] if attributes else [])]
    passed = [p.name for p in h.policies.values() if p.is_passed]
    what = "advantages, index" if h.advantages is None else f"rewards={_rewards(h)}, index=index"
    policies = ", ".join(f'"{p}": {p}_log_probs' for p in passed)
    more = [f"policies={{{policies}}}"] if passed else []
    call = ", ".join(["log_probs, old_log_probs", what, *more])
    return f"""op = fibration.compile(fibration.load("{h.name}"))
index = op.index({", ".join(given)})
op.loss({call}).loss.backward()"""


def _rewards(h: Hierarchy) -> str:
    return "rewards_of_tokens" if adds_up_tokens(h) else "rewards"


def _of_rows(h: Hierarchy) -> set[str]:
    """The strata that take a label per row."""
    over = h.coarser(h.rows) if h.rows in h.strata else ()
    return {s.name for s in (*over, *h.groups)}


def run(h: Hierarchy, op: Operator) -> None:
    """What `use` says, on a small batch off policy."""
    generator = torch.Generator().manual_seed(0)
    numbers = {
        n: -0.1 - torch.rand(B, T, generator=generator) for n in ("old", "rollout", "reference", "current", "log_probs")
    }
    mask = torch.tensor([[True] * T] * (B - 1) + [[True] * (T - 1) + [False]])
    half = torch.arange(T) % 2 == 0
    scope: dict[str, Any] = {"mask": mask, "log_probs": numbers["log_probs"].requires_grad_(), "op": op}
    scope |= {f"{p}_log_probs": numbers.get(p, numbers["old"]) for p in (*h.policies, "old")}
    scope |= {"advantages": torch.tensor([1.0, -1.0, 0.5, -0.5]), "rewards": torch.tensor([1.0, 0.0, 0.5, 1.0])}
    scope["rewards_of_tokens"] = scope["rewards"][:, None] * (torch.arange(T) == T - 1)
    scope |= {f"{s.name}_mask": mask & (half if i else ~half) for i, s in enumerate(h.leaves)}
    first = next(iter(h.shape.crossed()), None)  # what crosses it has other labels
    scope |= {f"{s}_of_rows": list("aabb") for s in wanted(h)}
    scope |= {f"{s}_of_rows": list("abab") for s in h.strata if first and not h.shape.comparable(first, s)}
    parity, row = torch.arange(T).expand(B, T) % 2, torch.arange(B)[:, None]
    scope |= {f"{s}_of_tokens": parity + 2 * row * (h.rows in h.coarser(s)) for s in h.strata}
    for name, a in h.attributes.items():
        scope[name] = torch.ones((B, T) if a.on in h.leaves else B)
    exec("\n".join(use(h).splitlines()[1:]), scope)


def picture(op: Operator) -> bytes | None:
    """The curves of its gates as SVG, unless all of them pass everything, or nothing."""
    h = op.hierarchy
    if all(removes(op, s.name) or str(h.gates[s]) == "identity_gate()" for s in h.strata):
        return None
    return contents(make(op, "gates", {}), "svg")


def page(h: Hierarchy, loss: Loss, drawn: bool) -> str:
    """The page of a loss."""
    name, report = h.name, h.verify()
    summary = ARXIV.sub(r"[\1](https://arxiv.org/abs/\1)", loss.summary)
    formula = re.sub(r"^%.*\n", "", latex(h), flags=re.MULTILINE)
    file = f"specs/{loss.family}.py"
    verdicts = " ".join(f"{m.sign}\u00a0{_plain(law)}" for law, m in zip(LAWS, marks(report), strict=True))
    proved = [_row(v.law, v.subject, v.argument) for v in report.verdicts if v.status == "proved"]
    facts = [_row(f.name, f.subject, f"{f.value}{f' ({f.argument})' if f.argument else ''}") for f in report.facts]
    return f"""# {name}

{summary}

{loss.said}

## Use

```python
{use(h)}
```

{_in_trainers(h)}
{f"Shipped by {loss.trainers}: the text above has their names for it." if loss.trainers else ""}

{_picture(name, drawn)}

## Parameters

{_parameters(h)}

## Formula

`fibration show {name} --format latex`:

```{{math}}
:nowrap:

{formula}
```

## Verdicts

{verdicts}

{", ".join(f"{m.sign} {m.word}" for m in legend([report]))}: [what each law asks](../laws.md).

{_given_up(report)}

{_folded("What is proved, and why", ("law", "of", "argument"), proved)}

{_folded("Facts", ("fact", "of", ""), facts)}

## Declaration

As [JSON]({name}.json), and as [{file}](../../{file}) has it:

```python
{_declaration(name)}
```

```text
{_tree(h)}
```
"""


def _in_trainers(h: Hierarchy) -> str:
    try:
        refuse_finer(h)
    except TrainerError as error:
        return f"In a loop of one's own alone: {_plain(error.what)}."
    if set(wanted(h)) - _of_rows(h):
        return "In a loop of one's own alone: trainers have labels of rows, and none of tokens."
    trl = "" if adds_up_tokens(h) else f'in TRL, `FibrationGRPOTrainer(..., hierarchy="{h.name}")`; '
    said = f"{trl}in verl, `hierarchy: {h.name}`: [in a trainer](../trainers/README.md)."
    return said[0].upper() + said[1:]


def _picture(name: str, drawn: bool) -> str:
    if not drawn:
        return "Its gates pass everything, or nothing: what it does to ratios stands in its objective."
    how = "[how to read it](../figures.md#gates-figfiber_weight)"
    return f"""![Gates of {name}]({name}.svg)

*`fibration plot {name}`: every gate along its residual, and its slope ({how}).*"""


def _folded(title: str, columns: tuple[str, ...], rows: list[str]) -> str:
    return f"<details><summary>{title}</summary>\n\n{_table(columns, rows)}\n\n</details>"


def _table(columns: tuple[str, ...], rows: list[str]) -> str:
    return "\n".join([f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *rows])


def _parameters(h: Hierarchy) -> str:
    rows = []
    for name, p in h.parameters.items():
        default = ", ".join(f"{k} {v:g}" for k, v in p.default.items()) if isinstance(p.default, Mapping) else p.default
        rows.append(_row(name, "none" if default is None else str(default), str(p.range)))
    return _table(("parameter", "default", "between"), rows) if rows else "None."


def _given_up(report: Report) -> str:
    broken = [v for v in report.verdicts if v.status != "proved"]
    rows = [_row(v.law, v.subject, v.given_up, str(v.counterexample or v.found)) for v in broken]
    return _table(("given up", "of", "why", "what shows it"), rows) if rows else ""


def _row(first: str, second: str, *rest: str) -> str:
    return "| " + " | ".join([f"`{first}`", _plain(second), *map(_plain, rest)]) + " |"


def _plain(text: str) -> str:
    """Text in which Markdown finds no markup."""
    return re.sub(r"([\\`*_\[\]<>|#&~$])", r"\\\1", " ".join(text.split()))


def _declaration(name: str) -> str:
    """The statements of its file that it needs, without imports."""
    text = shipped_file(name).read_text()
    body, lines = ast.parse(text).body, text.splitlines()
    made = {n: i for i, node in enumerate(body) for n in _assigned(node)}
    needed, new = set[int](), [made[name]]
    while new:
        i = new.pop()
        if i not in needed and not isinstance(body[i], ast.ImportFrom):
            needed.add(i)
            new += [made[n.id] for n in ast.walk(body[i]) if isinstance(n, ast.Name) and n.id in made]
    code = ["\n".join(lines[body[i].lineno - 1 : body[i].end_lineno]) for i in sorted(needed)]
    return "\n".join(code)


def _assigned(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else []
    return {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}


def _tree(h: Hierarchy) -> str:
    return "\n".join(tree(h) if h.shape.is_tree else quiver(h))


def write(found: Mapping[str, Loss]) -> None:
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.iterdir():
        if old.stem not in found:
            old.unlink()
    for name, loss in found.items():
        h = fibration.load(name)
        op = fibration.compile(h, "torch")
        run(h, op)
        svg = picture(op)
        if svg is not None:
            write_file(FOLDER / f"{name}.svg", svg)
        write_file(FOLDER / f"{name}.json", h.model_dump_json(indent=2).encode())
        write_file(FOLDER / f"{name}.myst", page(h, loss, svg is not None).encode())


def setup(app: Any) -> dict[str, bool]:
    found = losses(pages())

    def read(app: Any, docname: str, source: list[str]) -> None:
        if docname == "losses" or docname.startswith("losses/"):
            source[0] = on_site(source[0], docname.partition("/")[2], found)

    app.connect("builder-inited", lambda app: write(found))
    app.connect("source-read", read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
