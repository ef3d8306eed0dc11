"""The log of a start names what takes how long."""

import logging
import re
from pathlib import Path

import pytest

from dspark.runtime.models import running_engine
from engine.config import EngineConfig
from tests.support.engine.tiny_models import tiny_target


def test_the_stages_of_a_start_are_logged_with_their_seconds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny_target().model.save_pretrained(tmp_path)
    config = EngineConfig(target=str(tmp_path), num_pages=16, num_threads=1, lookup="off")
    with caplog.at_level(logging.INFO), running_engine(config):
        pass
    stages = [m[1] for text in caplog.messages if (m := re.fullmatch(r"(.+) took \d+\.\d s", text))]
    assert stages == [
        "importing torch and transformers",
        "loading the weights",
        "preparing kernels and checking the target",
        "allocating memory",
        "measuring costs",
    ]
