"""Parses YAML into nodes with line numbers, in which every scalar is a text.

So a value in a file means what the same text means in a flag: `010` is ten, and `off` is no
boolean. Only an unquoted `null`, `~` or nothing at all is null.
"""

from typing import Any, TypeAlias

import yaml

from server.settings.base import SettingsError, shown

Value: TypeAlias = "str | list[Value] | dict[str, Value] | None"

_DEEPEST = 16
_NULLS = ("", "~", "null", "Null", "NULL")


def compose(text: str, name: str) -> yaml.Node | None:
    """Parse one document; None if it is empty. Raises SettingsError naming the line."""
    try:
        return _Loader(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        problem = shown(error.problem or error.context or "")
    except yaml.YAMLError as error:
        line, problem = "", shown(" ".join(str(error).split()))
    raise SettingsError(f"{name}{line}: not YAML: {problem}")


def value_of(node: yaml.Node) -> Value:
    """Convert a node to plain values."""
    if isinstance(node, yaml.SequenceNode):
        return [value_of(item) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        return {str(value_of(key)): value_of(value) for key, value in node.value}
    return None if is_null(node) else str(node.value)


def is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.style is None and node.value in _NULLS


def line_of(node: yaml.Node) -> int:
    line: int = node.start_mark.line
    return line + 1


class _Loader(yaml.BaseLoader):
    """Refuses what can make a short file large, deep or something else than plain values."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            anchor = self.anchors.get(event.anchor)
            if anchor is not None and not isinstance(anchor, yaml.ScalarNode):
                raise _refused(
                    f"found *{event.anchor}, an alias of a list or mapping; accepted: aliases of "
                    "single values, and settings written out in place of a merge key (<<)",
                    event,
                )
        elif event.tag not in (None, "!"):
            raise _refused(f"found the tag {event.tag}; accepted: values without a tag", event)
        if self._depth == _DEEPEST:
            raise _refused(f"found more than {_DEEPEST} levels of lists and mappings", event)
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


def _refused(problem: str, event: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
