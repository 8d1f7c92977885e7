"""The `commands` directive: every command of `fibration`, as it says itself with `--help`."""

from typing import Any

from typer.main import get_command

from fibration.cli.main import app as commands


def helps() -> dict[str, str]:
    """What each command says of itself."""
    own: Any = get_command(commands)
    settings = {"resilient_parsing": True, "terminal_width": 78}
    root = own.make_context("fibration", [], **settings)
    below = {f"fibration {n}": c.make_context(n, [], root, **settings) for n, c in own.commands.items()}
    return {name: context.get_help() for name, context in {"fibration": root, **below}.items()}


def setup(app: Any) -> dict[str, bool]:
    from docutils import nodes
    from docutils.parsers.rst import Directive

    class Commands(Directive):
        def run(self) -> list[nodes.Node]:
            sections = []
            for name, said in helps().items():
                section = nodes.section("", nodes.title("", name), ids=[nodes.make_id(name)], names=[name])
                section += nodes.literal_block(said, said, language="text")
                sections.append(section)
            return sections

    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
