"""Commands accept targets without PyTorch's attention: gpt-oss with sinks, Gemma 2 with caps."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import GenerationConfig

from dspark.cli.main import main
from tests.support.engine.families import FAMILIES
from tests.support.engine.tiny_models import VOCAB
from tests.support.server.tiny_pair import TinyPair, character_tokenizer
from tests.support.training.command import train, write_config


@pytest.fixture(scope="module", params=["gpt-oss", "Gemma 2"])
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def target(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    chosen = FAMILIES[family]
    sizes = {"vocab_size": VOCAB, "num_hidden_layers": 5, "eos_token_id": VOCAB - 1}
    kinds = ["sliding_attention", "full_attention"] * 2 + ["full_attention"]
    model: Any = replace(chosen, changes={**chosen.changes, **sizes, "layer_types": kinds}).model()
    model.generation_config = GenerationConfig(eos_token_id=VOCAB - 1)
    model.save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def flags(target: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    prompts = tmp_path_factory.mktemp("prompts") / "mine.jsonl"
    lines = [{"prompt": "a prompt that is longer than the window"}, {"prompt": "two"}]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    pool = ["--kv.num_pages", "64", "--page-size", "8", "--device.num_threads", "1"]
    plain = ["--speculative.algorithm", "none"]
    return [str(target), *plain, *pool, "--prompts", str(prompts), "--max-tokens", "8"]


def test_their_greedy_text_is_proven(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", *flags]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["identical"], found["different"]) == (2, 0)


def test_they_are_compared_with_transformers(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *flags, "--compare", "transformers", "--trials", "1"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["token_ids_identical"] is True


def test_a_draft_is_trained_for_gpt_oss_and_refused_for_capped_logits_in_one_line(
    family: str, target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = TinyPair(target, tmp_path)
    code = train(write_config(tmp_path, pair, training__max_steps=2))
    err = capsys.readouterr().err
    if family == "gpt-oss":
        assert code == 0
        assert (tmp_path / "out" / "draft" / "model.safetensors").exists()
    else:
        assert code == 1
        last = err.splitlines()[-1]
        assert last.startswith("dspark: model.path: found a gemma2 target that applies a scale, a")
        assert "Traceback" not in err
