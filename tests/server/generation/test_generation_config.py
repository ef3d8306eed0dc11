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


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"top_p": 0}, "'top_p' must be greater than 0; found 0"),
        ({"top_p": "0.7"}, "'top_p' must be a number; found \"0.7\""),
        ({"temperature": -1}, "'temperature' must be at least 0; found -1"),
        ({"temperature": True}, "'temperature' must be a number; found true"),
        ({"top_k": -7}, "'top_k' must be -1 or 0 (off), or at least 1; found -7"),
        ({"top_k": [50]}, "'top_k' must be an integer; found [50]"),
        ({"min_p": 2}, "'min_p' must be at most 1; found 2"),
        ({"repetition_penalty": 0}, "'repetition_penalty' must be at least 0.01; found 0"),
        ([], "found []; accepted: a JSON object"),
        ("a" * 1000, 'found "' + "a" * 59 + "...; accepted: a JSON object"),
    ],
)
def test_a_value_that_no_request_could_have_is_refused_in_one_line(
    tmp_path: Path, values: object, message: str
) -> None:
    with pytest.raises(LoadError) as error:
        read_sampling(write(tmp_path, values))
    assert str(error.value).startswith(f"{tmp_path / 'generation_config.json'}: {message}")
    assert "\n" not in str(error.value)


def test_not_a_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="'temperature' must be a finite number"):
        read_sampling(write(tmp_path, {"temperature": float("nan")}))


def test_a_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    file = tmp_path / "generation_config.json"
    file.write_bytes(b'\xef\xbb\xbf{"top_p": 0.5}')
    assert read_sampling(file) == {"top_p": 0.5}


@pytest.mark.parametrize("content", [b"\xff{}", b"[" * 100_000])
def test_a_file_that_cannot_be_read_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "generation_config.json"
    file.write_bytes(content)
    with pytest.raises(LoadError, match=r"generation_config\.json") as error:
        read_sampling(file)
    assert "\n" not in str(error.value)
