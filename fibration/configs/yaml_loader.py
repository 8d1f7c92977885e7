"""YAML within bounds: what `yaml.safe_load` reads, of limited size and depth, and with every key once."""

from __future__ import annotations

from typing import Any

import yaml  # type: ignore[import-untyped,unused-ignore]

MAX_NODES = 20_000  # values, with those that an alias repeats; a whole config of verl has 1,500
MAX_DEPTH = 50


def load_yaml(text: str) -> Any:
    """The value of a YAML text. Dates stay text.

    Raises yaml.YAMLError for what is no YAML, has several documents, a doubled key, an alias inside itself, more than
    MAX_NODES values or MAX_DEPTH levels, and for a value that cannot be read, such as a number of 5,000 digits.
    """
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):  # type: ignore[misc,unused-ignore]
    yaml_implicit_resolvers = {  # noqa: RUF012  (as the class that it overrides)
        first: [(tag, pattern) for tag, pattern in rules if not tag.endswith(":timestamp")]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._nodes = 0
        self._sizes: dict[int, int] = {}  # of finished nodes, by id

    def compose_node(self, parent: Any, index: Any) -> Any:
        event, before = self.peek_event(), self._nodes
        is_alias = isinstance(event, yaml.AliasEvent) and event.anchor in self.anchors
        if is_alias and id(self.anchors[event.anchor]) not in self._sizes:
            raise yaml.YAMLError(f"the alias '*{event.anchor}'{_line(event)} is inside what it repeats")
        self._nodes += self._sizes[id(self.anchors[event.anchor])] if is_alias else 1
        self._depth += 1
        if self._nodes > MAX_NODES or self._depth > MAX_DEPTH:
            most = f"{MAX_NODES} values" if self._nodes > MAX_NODES else f"{MAX_DEPTH} levels"
            raise yaml.YAMLError(f"more than {most}{_line(event)}")
        node = super().compose_node(parent, index)
        self._depth -= 1
        self._sizes[id(node)] = self._nodes - before
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], str] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (before := lines.get((key.tag, key.value))) is not None:
                    raise yaml.YAMLError(f"the key {key.value[:80]!r} is given twice:{before} and{_line(key)}")
                lines[key.tag, key.value] = _line(key)
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            what = f"{node.value[:40]!r}" if isinstance(node, yaml.ScalarNode) else "the value"
            raise yaml.YAMLError(f"{what}{_line(node)} cannot be read as {node.tag.rpartition(':')[2]}") from error


def _line(of: Any) -> str:
    return f" in line {of.start_mark.line + 1}"
