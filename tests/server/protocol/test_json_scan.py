"""Scans of JSON text overlook no value that JSON cannot carry back."""

import json
import math
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from server.protocol.json_scan import may_hold_infinite, may_hold_surrogates

INFINITE = re.compile(r"NaN|Infinity|[eE]\+?\d{3}|\d{256}")
SURROGATE = re.compile(r"\\u[dD]|[\ud800-\udfff]")


@given(st.text(alphabet='eE+-.019N"', max_size=9))
@example("e999")
@example("1E+400")
@example("NaN")
def test_an_exponent_or_name_is_found_wherever_a_search_finds_it(text: str) -> None:
    assert may_hold_infinite(text) == (INFINITE.search(text) is not None)


@pytest.mark.parametrize("at", [0, 1, 2**18 - 200, 2**18 - 1, 2**18, 2**19 - 3])
@pytest.mark.parametrize("number", ["1e999", "2E+400", "9" * 310])
def test_a_number_that_overflows_is_found_in_any_place(number: str, at: int) -> None:
    assert math.isinf(json.loads(number, parse_int=float))
    text = "a" * at + " " + number
    assert may_hold_infinite(text)
    assert may_hold_infinite(text + "a" * 400)
    assert not may_hold_infinite("a" * at + " 1.5e30 123456789")


@given(st.text(alphabet=st.sampled_from("\\uUdD8aé\ud83d"), max_size=8))
def test_surrogates_are_found_wherever_a_search_finds_them(text: str) -> None:
    assert may_hold_surrogates(text) == (SURROGATE.search(text) is not None)
