"""`dspark train` as a user types it, over a tiny target on disk."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from dspark.cli.main import main
from dspark.training.run import checkpoints
from tests.support.engine.tiny_models import VOCAB
from tests.support.server.tiny_pair import TinyPair
from tests.support.training.command import WORDS, train, write_config


def test_a_trained_draft_can_be_served_and_its_accept_lengths_are_reported(
    pair: TinyPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    enough = {"training__epochs": 12, "training__validate_every": 16}
    assert train(write_config(tmp_path, pair, **enough)) == 0
    out, err = capsys.readouterr()
    assert "accept_rate@0" in out
    assert "exported_step=" in out
    for stage in ("answers", "hidden_states", "training", "evaluation"):
        assert len(re.findall(rf"stage={stage} seconds=\d+", err)) == 1
    assert "done in" not in err
    assert re.search(r"seconds_per_step=\d+\.\d+ estimated_minutes_left=\d+", err)
    assert "estimated_peak_gib=" in err
    assert re.search(r"^answers: \d+ of 20$", err, re.MULTILINE)
    output = tmp_path / "out"
    entries = [json.loads(line) for line in (output / "training.jsonl").read_text().splitlines()]
    steps = [entry["step"] for entry in entries if entry["kind"] == "step"]
    assert steps == list(range(1, len(steps) + 1))
    checks = [entry for entry in entries if entry["kind"] == "validation"]
    assert checks[-1]["step"] == steps[-1]
    assert len(checks[0]["acceptance"]) == 3
    assert (output / "curves.png").read_bytes().startswith(b"\x89PNG")
    held_out = (output / "held-out-prompts.jsonl").read_text().splitlines()
    assert 0 < len(held_out) < len(WORDS)
    card = (output / "draft" / "README.md").read_text()
    assert "| sums | 0 | 1 |" in card
    assert "own prompts" not in card
    config = json.loads((output / "draft" / "config.json").read_text())
    first, *answers = map(json.loads, (output / "answers.jsonl").read_text().splitlines())
    assert first == {"target": config["target_fingerprint"]}
    assert {answer["variant"] for answer in answers} == {
        "0-t0-p1-k-1-n12-s42",
        "1-t0.9-p1-k-1-n12-s42",
    }
    assert all(
        set(answer) == {"prompt", "variant", "prompt_ids", "answer_ids"} for answer in answers
    )
    assert f"fingerprint `{config['target_fingerprint']}`" in card
    served = ["--model", str(pair.target), "--draft-model", str(output / "draft")]
    sized = ["--kv.num_pages", "64", "--device.num_threads", "1"]
    prompts = ["--prompts", str(output / "held-out-prompts.jsonl"), "--max-tokens", "4"]
    assert main(["eval", *served, *sized, *prompts]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["block_size"] == 3


def test_a_killed_run_ends_with_the_draft_of_an_unbroken_one(
    pair: TinyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "unbroken").mkdir()
    (tmp_path / "killed").mkdir()
    assert train(write_config(tmp_path / "unbroken", pair)) == 0
    config = write_config(tmp_path / "killed", pair)
    save, num_saved = checkpoints.Checkpoints.save, 0

    def save_and_die(self: object, state: object, *, step: int) -> object:
        nonlocal num_saved
        saved = save(self, state, step=step)  # type: ignore[arg-type]
        num_saved += 1
        if num_saved == 2:
            raise KeyboardInterrupt
        return saved

    monkeypatch.setattr(checkpoints.Checkpoints, "save", save_and_die)
    assert train(config) == 130
    assert num_saved == 2
    monkeypatch.undo()
    answers = (tmp_path / "killed" / "out" / "answers.jsonl").read_text()
    assert train(config) == 0
    ends = [tmp_path / name / "out" for name in ("unbroken", "killed")]
    drafts = [load_file(end / "draft" / "model.safetensors") for end in ends]
    assert drafts[0].keys() == drafts[1].keys()
    for name, tensor in drafts[0].items():
        assert tensor.equal(drafts[1][name]), name
    assert (ends[1] / "answers.jsonl").read_text() == answers
    logs = [(end / "training.jsonl").read_text() for end in ends]
    assert logs[0] == logs[1]


def test_hidden_states_kept_read_or_computed_at_each_visit_make_the_same_draft(
    pair: TinyPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drafts, logs = [], []
    for mode in ("cached", "cached", "online"):
        assert train(write_config(tmp_path, pair, features__mode=mode)) == 0
        drafts.append(load_file(tmp_path / "out" / "draft" / "model.safetensors"))
        assert (tmp_path / "out" / "features").exists() == (mode == "cached")
        logs.append(capsys.readouterr().err)
        for folder in ("features", "checkpoints", "draft"):
            shutil.rmtree(tmp_path / "out" / folder, ignore_errors=True)
    by_engine, by_second_pass, anew = drafts
    assert re.search(r"hidden states stored=\d+ skipped=0", logs[0])
    assert "hidden states, " not in logs[0]  # nothing was missing
    assert re.search(r"hidden states, \d+ missing", logs[1])  # the answers were there already
    for name, tensor in by_second_pass.items():
        assert tensor.equal(anew[name]), name
        torch.testing.assert_close(by_engine[name], tensor, atol=0.02, rtol=0.02, msg=name)


def test_another_configuration_does_not_continue_a_training(
    pair: TinyPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path, pair, evaluation__prompts_per_set=0)
    assert train(config) == 0
    assert train(config, "--set", "training.learning_rate=0.5") == 2
    assert "training.learning_rate: found 0.5; accepted: 0.0006, as in " in capsys.readouterr().err
    (tmp_path / "out" / "settings.json").unlink()  # as earlier versions left a folder
    assert train(config, "--set", "training.learning_rate=0.5") == 1
    err = capsys.readouterr().err.splitlines()[-1]
    assert "training.learning_rate: found 0.5; accepted: 0.0006" in err


def test_a_training_can_begin_with_an_existing_draft(pair: TinyPair, tmp_path: Path) -> None:
    config = write_config(
        tmp_path, pair, training__start="draft", training__start_draft=str(pair.draft)
    )
    assert train(config, "--set", "training.max_steps=1") == 0
    made = json.loads((tmp_path / "out" / "draft" / "config.json").read_text())
    assert made["block_size"] == 4  # the given draft's, whatever the design says


def test_a_smaller_vocabulary_is_learned_with_and_served(
    pair: TinyPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = 20
    config = write_config(tmp_path, pair, design__draft_vocab_size=words)
    assert train(config, "--set", "training.max_steps=2") == 0
    out, err = capsys.readouterr()
    assert f"draft vocabulary: {words} tokens, " in err
    assert "accept_rate@0" in out  # the engine loaded it
    draft = tmp_path / "out" / "draft"
    assert json.loads((draft / "config.json").read_text())["draft_vocab_size"] == words
    assert f"{words} of the target's" in (draft / "README.md").read_text()

    begun = write_config(
        tmp_path,
        pair,
        design__draft_vocab_size=words,
        training__start="draft",
        training__start_draft=str(pair.draft),
    )
    again = ["--set", f"output={tmp_path / 'again'}", "--set", "training.max_steps=1"]
    assert train(begun, *again) == 0
    made = json.loads((tmp_path / "again" / "draft" / "config.json").read_text())
    assert (made["draft_vocab_size"], made["block_size"]) == (words, 4)

    third = ["--set", f"training.start_draft={draft}", "--set", f"output={tmp_path / 'third'}"]
    assert train(begun, *third) == 1
    assert "training.start_draft has a reduced vocabulary of 20" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"training__lerning_rate": 1}, "did you mean training.learning_rate?"),
        ({"training__epochs": 0}, "training.epochs: found '0'; accepted: an integer, at least 1"),
        ({"training__start": "draft"}, "training.start and training.start_draft"),
        ({"data__prompts": []}, "data.prompts: found none; accepted: at least one file, or own"),
        (
            {"data__prompts": ["no-such.jsonl"]},
            "no-such.jsonl, which is no file; accepted: JSONL files, or none (data.prompts=[]) "
            "with own_prompts.count above 0",
        ),
        ({"data__prompts": ["empty.jsonl"]}, "found no prompt; accepted: one JSON object a line"),
        ({"data__prompts": ["broken.jsonl"]}, "broken.jsonl:2: this is no JSON"),
        ({"data__prompts": ["deep.jsonl"]}, "deep.jsonl:2: this JSON is nested too deeply"),
        ({"data__prompts": ["surrogate.jsonl"]}, "surrogate.jsonl:1: found a lone surrogate"),
        ({"data__prompts": ["latin.jsonl"]}, "latin.jsonl:2: found bytes that are not UTF-8"),
        ({"answers__max_new_tokens": 64}, "answers.max_new_tokens: found 64; accepted: less than"),
        ({"model__path": "a/b/c"}, "model.path: found a/b/c, which is no folder and no hub id"),
        ({"answers__draft_model": "a b"}, "answers.draft_model: found a b, which is no folder"),
        ({"model__path": "demo:other"}, "model.path: found demo:other; accepted: demo:smollm2"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(
    pair: TinyPair,
    tmp_path: Path,
    changes: dict[str, object],
    complaint: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "broken.jsonl").write_text('{"prompt": "good"}\n{broken\n')
    (tmp_path / "deep.jsonl").write_text(f'{{"prompt": "good"}}\n{"[" * 5000}{"]" * 5000}\n')
    (tmp_path / "surrogate.jsonl").write_text('{"prompt": "a\\ud800"}\n')
    (tmp_path / "latin.jsonl").write_bytes(b'\xef\xbb\xbf{"prompt": "good"}\n{"prompt": "\xe9"}\n')
    assert train(write_config(tmp_path, pair, **changes)) == 2
    err = capsys.readouterr().err
    assert complaint in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"output: out\ndata: [1\n", "train.yaml:3: not YAML: expected ',' or ']'"),
        (b"output: \xff\n", "train.yaml:1: found bytes that are not UTF-8"),
    ],
)
def test_a_file_that_is_no_yaml_is_named_with_its_line(
    tmp_path: Path, content: bytes, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "train.yaml"
    config.write_bytes(content)
    assert train(config) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("value", ["3", "[epochs]", "fast"])
def test_a_value_where_a_section_belongs_is_named_as_such(
    tmp_path: Path, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "train.yaml"
    config.write_text(f"output: out\ntraining: {value}\n")
    assert train(config) == 2
    found = f"dspark: {config}:2: training: found {yaml.load(value, yaml.BaseLoader)!r}"
    assert capsys.readouterr().err == f"{found}; accepted: a mapping of settings\n"


def test_every_mistake_in_a_trainings_settings_has_a_line(
    pair: TinyPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {"training__epochs": 0, "data__held_out": 2, "model__dtype": "int3"}
    config = write_config(tmp_path, pair, **changes)
    assert train(config) == 2
    lines = capsys.readouterr().err.splitlines()
    found = [re.sub(r":\d+: ", ": ", line.partition(";")[0]) for line in lines]
    assert found == [
        f"dspark: {config}: data.held_out: found '2'",
        f"dspark: {config}: model.dtype: found 'int3'",
        f"dspark: {config}: training.epochs: found '0'",
    ]


def test_a_training_without_held_out_prompts_logs_that_before_it_starts(
    pair: TinyPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path, pair, data__held_out=0.0, training__max_steps=2)
    assert train(config) == 0
    err = capsys.readouterr().err
    assert err.index("none of 10 prompts is held out") < err.index("stage=answers")
    assert re.search(r"step=2 of=2 loss=\d+\.\d+ \(no held-out prompts\)", err)
    assert not (tmp_path / "out" / "held-out-prompts.jsonl").exists()


def test_settings_of_a_training_are_flags_and_variables_too(
    pair: TinyPair,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = write_config(tmp_path, pair)
    monkeypatch.setenv("DSPARK_TRAIN__TRAINING__EPOCHS", "3")
    monkeypatch.setenv("DSPARK__MODEL__PATH", "the/servers")
    flags = ["--training.learning-rate", "0.5", "--answers.temperatures", "[0, 0.5]"]
    flags += ["--design.tap_layers", "1,2", "--device", "cpu", "--design.draft_vocab_size=null"]
    assert train(config, *flags, "--print-config") == 0
    shown = capsys.readouterr().out
    assert "  epochs: 3  # DSPARK_TRAIN__TRAINING__EPOCHS\n" in shown
    assert "  learning_rate: 0.5  # --training.learning-rate\n" in shown
    assert "  temperatures: [0.0, 0.5]  # --answers.temperatures\n" in shown
    assert "  tap_layers: [1, 2]  # --design.tap_layers\n" in shown
    assert f"output: {tmp_path / 'out'}  # {config}:" in shown
    (tmp_path / "printed.yaml").write_text(shown)
    monkeypatch.delenv("DSPARK_TRAIN__TRAINING__EPOCHS")
    assert train(tmp_path / "printed.yaml", "--check") == 0
    assert capsys.readouterr().out == "the settings are valid; 10 prompts\n"
    assert train(config, "--training.lerning_rate", "1") == 2
    assert "did you mean --training.learning_rate?" in capsys.readouterr().err
    assert train(config, "--set", "training.epochs=0x10") == 2
    assert "--set training.epochs: found '0x10'; accepted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"design__num_taps": 5}, "5 taps do not fit a target of 5 layers"),
        ({"data__held_out": 0.99999}, "no sequence to train on"),
        ({"answers__min_tokens": 12, "data__max_tokens": 14}, "no sequence to train on"),
        ({"features__mode": "cached", "features__disk_budget_gib": 1e-9}, "disk_budget_gib: found"),
        ({"design__mask_token_id": VOCAB}, f"mask_token_id: found {VOCAB}; accepted: 0 to"),
        ({"design__num_kv_heads": 3}, "num_kv_heads: found 3; accepted: a divisor"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_one_line(
    pair: TinyPair,
    tmp_path: Path,
    changes: dict[str, object],
    complaint: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert train(write_config(tmp_path, pair, **changes)) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("dspark: ")
    assert complaint in last


def test_malformed_lines_are_skipped_and_reported_with_that_setting(
    pair: TinyPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.jsonl").write_text('{"prompt": "good"}\n{broken\n')
    changes = {"data__prompts": ["broken.jsonl"], "data__malformed_lines": "skip"}
    assert train(write_config(tmp_path, pair, **changes), "--check") == 0
    out, err = capsys.readouterr()
    assert "1 prompts" in out
    assert "skipped: " in err
    assert "broken.jsonl:2" in err
