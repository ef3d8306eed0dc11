"""A training's folder keeps to the settings that its steps were begun with."""

import json
import shutil
from pathlib import Path

import pytest

from dspark.training.settings.begun_training import alone_in
from dspark.training.settings.schema import TRAINING
from server.settings.schema import SettingsError
from tests.support.server.logs import log_given_back
from tests.support.server.tiny_pair import TinyPair
from tests.support.training.command import train, write_config


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a training that is done."""
    folder = tmp_path_factory.mktemp("training")
    pair = TinyPair.write(folder / "pair")
    config = write_config(folder, pair, training__max_steps=2, evaluation__prompts_per_set=0)
    with log_given_back():
        assert train(config) == 0
    return config


def test_each_setting_that_changes_a_training_is_refused_before_any_file_changes(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = config.parent / "out"
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    (config.parent / "more.jsonl").write_text('{"prompt": "eleven"}\n')
    (config.parent / "chat.jinja").write_text("{{ messages[0].content }}")
    other = ["answers.temperatures=[0, 0.5]", "data.held_out=0.5", "design.block_size=2"]
    other += ["own_prompts.count=3", "training.epochs=9"]
    other += [f"data.prompts=[{config.parent}/sums.jsonl, {config.parent}/more.jsonl]"]
    other += [f"model.chat_template={config.parent}/chat.jinja"]
    changes = [word for item in other for word in ("--set", item)]
    assert train(config, *changes) == 2
    *named, what_to_do = capsys.readouterr().err.splitlines()
    assert [line.partition(": found")[0].removeprefix("dspark: ") for line in named] == [
        "data.prompts",
        "model.chat_template",
        "data.held_out",
        "own_prompts.count",
        "answers.temperatures",
        "design.block_size",
        "training.epochs",
    ]
    found = f"found [0.0, 0.5]; accepted: [0.0, 0.9], as in {out}/settings.json"
    assert f"dspark: answers.temperatures: {found}" in named
    assert "accepted: 10 after data.max_prompts, of hash " in named[0]
    assert "another output folder, or this one without" in what_to_do
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert train(config, *changes, "--check") == 2
    assert "answers.temperatures: found" in capsys.readouterr().err


def test_settings_without_influence_on_the_steps_may_change(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = tmp_path / "moved.jsonl"
    sums = (config.parent / "sums.jsonl").read_text().splitlines()
    moved.write_text("".join(f'{{"category": "sums", {line[1:]}\n' for line in sums))
    free = [f"data.prompts=[{moved}]", "data.max_prompts=99", "answers.concurrency=3"]
    free += ["features.mode=online", "training.export=last", "own_prompts.seed=7"]
    assert train(config, *(word for item in free for word in ("--set", item))) == 0
    assert "training continues after step 2" in capsys.readouterr().err


def test_before_the_first_checkpoint_other_settings_are_accepted_and_logged(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    shutil.copytree(config.parent / "out", out)
    shutil.rmtree(out / "checkpoints")
    anew = ["--set", f"output={out}", "--set", "training.learning_rate=0.5"]
    assert train(config, *anew) == 0
    err = capsys.readouterr().err
    assert "training.learning_rate: 0.0006 is now 0.5; no step was taken yet" in err
    assert json.loads((out / "settings.json").read_text())["training.learning_rate"] == 0.5
    assert train(config, *anew[:2]) == 2


def test_a_foreign_settings_file_is_refused(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "settings.json").write_text("[]")
    assert train(config, "--set", f"output={tmp_path}") == 1
    assert f"{tmp_path}/settings.json: found no JSON object" in capsys.readouterr().err


def test_every_setting_is_stored_or_has_no_influence_on_the_steps(config: Path) -> None:
    begun = json.loads((config.parent / "out" / "settings.json").read_text())
    free = {"data.malformed_lines", "data.max_prompts", "answers.concurrency", "output"}
    free |= {"answers.draft_model", "training.compile", "training.export"}
    free |= {"training.checkpoint_every", "training.validate_every"}
    free |= {"training.validation_sequences"}
    sections = ("model.", "features.", "evaluation.", "device.", "own_prompts.")
    left = {name for name in TRAINING.settings if not name.startswith(sections)} - set(begun)
    assert left == free


def test_a_folder_in_which_a_training_runs_is_refused(tmp_path: Path) -> None:
    refusal = pytest.raises(SettingsError, match="in which another training runs")
    with alone_in(tmp_path), refusal, alone_in(tmp_path):
        pass
    with alone_in(tmp_path):
        pass
