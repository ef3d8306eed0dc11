"""The quality of quantised weights is that of transformers' own logits over the same windows."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.peers import quality
from tests.support.engine.tiny_models import tiny_model
from tests.support.server.tiny_pair import character_tokenizer

WINDOW = 64


def tiny_config(folder: Path) -> Path:
    target = folder / "target"
    model: Any = tiny_model("llama")
    model.save_pretrained(target)
    character_tokenizer().save_pretrained(target)
    file = folder / "tiny.yaml"
    file.write_text(
        f"model: {{path: {target}}}\nspeculative: {{algorithm: none}}\n"
        "kv: {num_pages: 64, page_size: 8}\ndevice: {num_threads: 1}\n"
    )
    return file


def test_perplexity_is_that_of_transformers_over_the_second_half_of_each_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(quality, "_WINDOW", WINDOW)
    monkeypatch.delenv("PEERS", raising=False)
    config, output = tiny_config(tmp_path), tmp_path / "quality.json"
    assert quality.main(["--config", str(config), "--windows", "3", "--output", str(output)]) == 0
    found = json.loads(output.read_text())
    float32, int8 = found["quality"]["dspark float32"], found["quality"]["dspark int8"]
    assert float32["perplexity"] == pytest.approx(expected_perplexity(tmp_path / "target"), 1e-4)
    assert float32["agreement"] is None
    assert int8["perplexity"] == pytest.approx(float32["perplexity"], 0.05)
    assert int8["perplexity"] != float32["perplexity"]
    assert 0.5 < int8["agreement"] <= 1
    assert found["scored_tokens"] == 3 * (WINDOW // 2 - 1)
    assert "dspark int8" in capsys.readouterr().out


def expected_perplexity(target: Path) -> float:
    ids = AutoTokenizer.from_pretrained(target).encode(quality.text_of_language_reference())
    model = AutoModelForCausalLM.from_pretrained(target)
    windows = torch.tensor(ids[: 3 * WINDOW]).view(3, WINDOW)
    with torch.no_grad():
        logits = model(windows).logits[:, WINDOW // 2 : -1]
    losses = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), windows[:, WINDOW // 2 + 1 :].flatten()
    )
    return math.exp(losses.item())


def test_more_windows_than_the_text_has_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PEERS", raising=False)
    with pytest.raises(SystemExit, match="--windows: found 100000; accepted: at most "):
        quality.main(["--config", str(tiny_config(tmp_path)), "--windows", "100000"])


def test_a_figure_that_llama_perplexity_does_not_print_is_an_error() -> None:
    with pytest.raises(SystemExit, match="printed no"):
        quality.number(r"Mean PPL\(Q\)\s*:\s*([\d.]+)", "error: no such file")
    assert quality.number(r"Same top p:\s*([\d.]+)", "Same top p: 95.780 ± 0.2 %") == 95.78
