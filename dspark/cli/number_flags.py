"""Parses flags that take a number, with errors that name what was found and what is accepted."""

import argparse
import math
from collections.abc import Callable
from typing import TypeVar

from server.settings.base import shown

N = TypeVar("N", int, float)


def an_integer(text: str) -> int:
    return _read(int, text, lambda value: True, "an integer")


def at_least_one(text: str) -> int:
    return _read(int, text, lambda value: value >= 1, "an integer, at least 1")


def above_zero(text: str) -> float:
    return _read(float, text, lambda value: 0 < value < math.inf, "a number above 0")


def at_least_zero(text: str) -> float:
    return _read(float, text, lambda value: 0 <= value < math.inf, "a number, at least 0")


def add_temperature_flag(
    parser: argparse.ArgumentParser, meaning: str = "default 0, which is greedy"
) -> None:
    parser.add_argument("--temperature", type=at_least_zero, default=0.0, metavar="T", help=meaning)


def _read(
    convert: Callable[[str], N], text: str, is_accepted: Callable[[N], bool], description: str
) -> N:
    try:
        value = convert(text)
    except ValueError:
        pass
    else:
        if is_accepted(value):
            return value
    raise argparse.ArgumentTypeError(f"found {shown(text)}; accepted: {description}")
