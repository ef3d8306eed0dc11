"""calibration.json: writing, reading and refusing it."""

import json
from pathlib import Path

import pytest

from draft import DraftLoadError
from draft.calibration import Scaling
from draft.checkpoint.calibration_file import Calibration, read_calibration

CALIBRATION = Calibration(
    (0.5, 2.0), "chat, 12 prompts", 400, (0.1, 0.2), (0.01, 0.02), (0.0, -1.5)
)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    assert read_calibration(tmp_path, block_size=2) is None
    file = CALIBRATION.write(tmp_path)
    assert read_calibration(tmp_path, block_size=2) == CALIBRATION
    assert set(json.loads(file.read_text())) == {
        "temperatures",
        "dataset",
        "num_samples",
        "ece_before",
        "ece_after",
        "shifts",
    }
    assert [path.name for path in tmp_path.iterdir()] == ["calibration.json"]


def test_a_file_without_shifts_has_none(tmp_path: Path) -> None:
    file = CALIBRATION.write(tmp_path)
    values = json.loads(file.read_text())
    del values["shifts"]
    file.write_text(json.dumps(values))
    found = read_calibration(tmp_path, block_size=2)
    assert found is not None
    assert found.scaling == Scaling((0.5, 2.0), (0.0, 0.0))


def test_only_temperatures_of_one_without_shifts_change_nothing() -> None:
    nothing = (0.0, 0.0)
    assert Calibration((1.0, 1.0), "x", 1, nothing, nothing, nothing).is_identity
    assert not Calibration((1.0, 1.0), "x", 1, nothing, nothing, (0.0, 0.5)).is_identity
    assert not CALIBRATION.is_identity


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperatures", None),
        ("temperatures", [1.0]),
        ("temperatures", [1.0, 0.0]),
        ("temperatures", [1.0, -2.0]),
        ("temperatures", [1.0, "2"]),
        ("temperatures", [1.0, float("nan")]),
        ("temperatures", [1.0, float("inf")]),
        ("ece_after", [0.1, -0.1]),
        ("shifts", [1.0]),
        ("shifts", [1.0, float("nan")]),
        ("num_samples", 0),
        ("num_samples", True),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_name(
    tmp_path: Path, field: str, value: object
) -> None:
    file = CALIBRATION.write(tmp_path)
    file.write_text(json.dumps(json.loads(file.read_text()) | {field: value}))
    with pytest.raises(DraftLoadError, match=rf"^draft calibration.json {field}: found .*accepted"):
        read_calibration(tmp_path, block_size=2)


def test_a_file_of_another_block_size_is_refused(tmp_path: Path) -> None:
    CALIBRATION.write(tmp_path)
    with pytest.raises(DraftLoadError, match="accepted: 5 numbers"):
        read_calibration(tmp_path, block_size=5)
