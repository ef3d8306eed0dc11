"""YAML 1.1 reads 010 as eight and 1:30 as ninety; whoever wrote that may have meant otherwise."""

import re

import yaml

_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_PLAIN = re.compile(r"[-+]?(0|[1-9][0-9]*)?(\.[0-9]*)?([eE][-+]?[0-9]+)?")


class OddNumber(yaml.MarkedYAMLError):
    """A number that is not written as a plain decimal one; `problem` is the complaint.

    Underscores, leading zeros, other bases and parts in sixties are odd. Infinities and what is
    not a number at all are left to the setting's own rules.
    """

    problem: str


class PlainLoader(yaml.SafeLoader):
    """A SafeLoader that raises OddNumber, wherever in a document one stands."""


def refuse_odd(text: str) -> None:
    """Raises OddNumber for a text that a file could not have said either."""
    try:
        yaml.load(text, Loader=PlainLoader)
    except OddNumber:
        raise
    except yaml.YAMLError:
        return  # not a number, whatever else it is


def _construct(loader: PlainLoader, node: yaml.ScalarNode) -> float:
    is_whole = node.tag == _INT
    value: float = (
        loader.construct_yaml_int(node) if is_whole else loader.construct_yaml_float(node)
    )
    written = str(node.value)
    if _PLAIN.fullmatch(written) or written.lower().lstrip("+-") in (".inf", ".nan"):
        return value
    raise OddNumber(
        problem=f"found {written}, which YAML reads as {value}; accepted: a plain decimal number",
        problem_mark=node.start_mark,
    )


PlainLoader.add_constructor(_INT, _construct)
PlainLoader.add_constructor(_FLOAT, _construct)
