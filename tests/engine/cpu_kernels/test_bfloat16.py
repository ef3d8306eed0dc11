"""CPU kernels run a bfloat16 target, and drafts change none of its tokens."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from engine.loading.target import LoadedTarget, describe_target
from engine.model_setup import target_check as self_check
from engine.model_setup.target_check import DenseReference
from tests.support.engine.cpu_kernels import kernels_or_skip
from tests.support.engine.running import greedy_requests, oracle, prompts, run_all
from tests.support.engine.tiny_models import VOCAB, tiny_engine, tiny_model, write_tiny_draft

NEW_TOKENS = 24


def _target(name: str) -> LoadedTarget:
    model = tiny_model(name).to(torch.bfloat16)
    return describe_target(model, max_len=160, dtype=torch.bfloat16)


@pytest.mark.parametrize("name", ["llama", "mistral_window", "qwen3"])
def test_drafts_change_no_token(name: str, tmp_path: Path) -> None:
    kernels_or_skip()
    prompt_ids = prompts(4, vocab=VOCAB)
    alone = tiny_engine(target=_target(name))
    found = run_all(alone, greedy_requests(prompt_ids, NEW_TOKENS))
    expected = [found[str(i)][0] for i in range(len(prompt_ids))]
    drafted = tiny_engine(target=_target(name), draft_folder=write_tiny_draft(tmp_path))
    with oracle([p + e for p, e in zip(prompt_ids, expected, strict=True)], good=3, vocab=VOCAB):
        found = run_all(drafted, greedy_requests(prompt_ids, NEW_TOKENS))
    assert [found[str(i)][0] for i in range(len(prompt_ids))] == expected
    assert max(found[str(i)][1].speculation.mean_accept_length for i in range(4)) > 2


def test_the_check_compares_with_the_same_weights_in_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernels_or_skip()
    checked = []

    def run_alone(model: nn.Module, **options: Any) -> DenseReference:
        checked.append({p.dtype for p in model.parameters()})
        return self_check.run_alone(model, **options)

    monkeypatch.setattr("engine.model_setup.target_backend.run_alone", run_alone)
    target = tiny_engine(target=_target("llama")).engine.info.details["target"]
    assert isinstance(target, dict)
    assert target["small_steps"] == {"path": "native", "reason": None}
    assert checked == [{torch.float32}]
    assert 0 < target["self_check"]["logits_difference"] < 0.03


def test_without_memory_for_the_check_pytorch_runs_the_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernels_or_skip()
    monkeypatch.setattr("engine.model_setup.target_backend.available_memory_bytes", lambda: 1000)
    target = tiny_engine(target=_target("llama")).engine.info.details["target"]
    assert isinstance(target, dict)
    assert target["small_steps"]["path"] == "transformers"
    assert "too little memory" in target["small_steps"]["reason"]
