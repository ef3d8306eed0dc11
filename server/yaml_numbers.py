"""YAML 1.1 reads 010 as eight and 1:30 as ninety; whoever wrote that may have meant otherwise."""

import re

import yaml

_NUMBER_TAGS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_PLAIN = re.compile(r"[-+]?(0|[1-9][0-9]*)?(\.[0-9]*)?([eE][-+]?[0-9]+)?")


def odd_number(node: yaml.Node, value: object) -> str | None:
    """The complaint about a number that is not written as a plain decimal one; None if it is.

    Underscores, leading zeros, other bases and parts in sixties are odd. Infinities and what is
    not a number at all are left to the setting's own rules.
    """
    if not isinstance(node, yaml.ScalarNode) or node.tag not in _NUMBER_TAGS:
        return None
    written = str(node.value)
    if _PLAIN.fullmatch(written) or written.lower().lstrip("+-") in (".inf", ".nan"):
        return None
    return f"found {written}, which YAML reads as {value}; accepted: a plain decimal number"
