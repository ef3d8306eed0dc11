"""Calls written as Python: [weather(city="Paris", days=2), clock()]. Parsed, never run."""

import ast
import warnings

from server.parsers.message_parts import ToolCall
from server.parsers.tool_calls.reading import make_call


def read_python(text: str, names: frozenset[str]) -> list[ToolCall] | None:
    """The calls of a list of calls with literal keyword arguments; None for anything else."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a strange literal: it is the model's
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
