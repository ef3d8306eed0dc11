"""generation_config: sampling defaults from a model's generation_config.json."""

import json
import logging
from pathlib import Path

import pytest

from engine import LoadError
from server.generation.generation_config import model_sampling, read_sampling


def write(folder: Path, values: object) -> Path:
    file = folder / "generation_config.json"
    file.write_text(json.dumps(values))
    return file


def test_fields_of_the_file_become_defaults(tmp_path: Path) -> None:
    file = write(tmp_path, {"repetition_penalty": 1.1, "top_p": None, "eos_token_id": [1, 2]})
    assert read_sampling(file) == {"repetition_penalty": 1.1}


def test_a_top_k_of_zero_is_off(tmp_path: Path) -> None:
    assert read_sampling(write(tmp_path, {"top_k": 0, "min_p": 0.1})) == {"top_k": -1, "min_p": 0.1}


def test_fields_that_the_server_does_not_apply_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write(tmp_path, {"typical_p": 0.9, "eta_cutoff": 0.0})
    with caplog.at_level(logging.WARNING):
        assert read_sampling(file) == {}
    assert "sets typical_p=0.9, which this server does not apply" in caplog.text
    assert "eta_cutoff" not in caplog.text


def test_a_file_that_is_not_json_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "generation_config.json"
    file.write_text("{")
    with pytest.raises(LoadError, match=r"generation_config\.json: found text that is not JSON"):
        read_sampling(file)


def test_a_model_without_the_file_has_no_defaults(tmp_path: Path) -> None:
    assert model_sampling(str(tmp_path), revision=None) == {}
    write(tmp_path, {"top_p": 0.9})
    assert model_sampling(str(tmp_path), revision=None) == {"top_p": 0.9}
