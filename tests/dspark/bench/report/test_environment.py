import json
from datetime import UTC, datetime
from pathlib import Path

import torch

import engine
from dspark.bench.report.environment import Start, circumstances, source_of
from dspark.bench.running import device_circumstances

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_a_result_has_its_machine_and_versions() -> None:
    where = {**circumstances(Start(START, 0.25)), **device_circumstances(torch.device("cpu"))}
    found = json.loads(json.dumps(where))
    assert found["date"] == "2026-01-02T03:04:05+00:00"
    assert found["load_average_at_start"] == 0.25
    assert (found["device"], found["torch_threads"]) == ("cpu", 1)
    assert found["device_name"]
    assert found["cores"] >= 1
    assert found["versions"]["torch"].startswith(torch.__version__.partition("+")[0])
    assert {"python", "transformers", "dspark-server"} <= set(found["versions"])
    assert {"commit", "has_local_changes"} <= set(found)


def test_a_busy_machine_is_a_note_on_the_result() -> None:
    (note,) = Start(START, 1.5).notes()
    assert "load average was 1.5" in note
    assert "another busy process" in note
    assert Start(START, 1.0).notes() == []
    assert Start(START, None).notes() == []
    assert Start.now().load_average is None or Start.now().load_average >= 0


def test_a_commit_is_only_named_for_files_of_the_checkout(tmp_path: Path) -> None:
    nowhere = tmp_path / "installed.py"
    nowhere.write_text("")
    assert source_of(nowhere) == {"commit": None, "has_local_changes": None}
    commit = source_of(Path(engine.__file__))["commit"]
    assert commit is None or len(str(commit)) == 40  # None where the tests run without git
