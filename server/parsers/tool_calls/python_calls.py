"""Parses calls in Python syntax, without running them: [weather(city="Paris"), clock()]."""

import ast
import warnings

from server.parsers.message_parts import ToolCall
from server.parsers.tool_calls.json_calls import make_call


def parse_python(text: str, names: frozenset[str]) -> list[ToolCall] | None:
    """Return the calls of a list with literal keyword arguments; None for anything else."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about literals that the model wrote
            tree = ast.parse(text.strip(), mode="eval").body
            if not isinstance(tree, ast.List) or not tree.elts:
                return None
            calls = [_call(item, names) for item in tree.elts]
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return None
    valid = [call for call in calls if call is not None]
    return valid if len(valid) == len(calls) else None


def _call(node: ast.expr, names: frozenset[str]) -> ToolCall | None:
    if not isinstance(node, ast.Call) or node.args:
        return None
    name = ast.unparse(node.func)
    if name not in names:
        return None
    arguments = {}
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in arguments:
            return None
        arguments[keyword.arg] = ast.literal_eval(keyword.value)
    return make_call(name, arguments)
