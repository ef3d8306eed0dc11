"""Sizes of buffers that Python allocates are those that the kernels use."""

import re
from pathlib import Path

import pytest

from engine.cpu_kernels import decoder, draft_binding, draft_round, structs

FOLDER = Path(decoder.__file__).parent
MIRRORED = {
    "FEW_ROWS": decoder._FEW_ROWS,
    "KEY_BLOCK": decoder._KEY_BLOCK,
    "HEAD_QUERIES": decoder._MAX_GROUP,
    "ROW_BLOCK": structs.ROW_BLOCK,
    "CHAIN_COLUMNS": draft_binding.CHAIN_COLUMNS,
    "MAX_CHAIN_SEQUENCES": draft_round._MAX_SEQUENCES,
}


@pytest.mark.parametrize("name", MIRRORED)
def test_a_constant_has_the_same_value_in_python_and_in_the_kernels(name: str) -> None:
    sources = "".join(path.read_text() for path in sorted(FOLDER.glob("*.h")))
    assert re.findall(rf"^#define {name} (\d+)", sources, re.MULTILINE) == [str(MIRRORED[name])]
