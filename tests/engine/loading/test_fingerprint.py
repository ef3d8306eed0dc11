"""A draft is loaded for the target that it was trained for."""

import json
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import LoadError
from engine.loading.draft import load_draft
from engine.loading.fingerprint import FIELD, fingerprint_of, target_fingerprint
from engine.loading.target import describe_target
from tests.support.engine.tiny_models import CPU, tiny_model, tiny_target, write_tiny_draft


def draft_with_fingerprint(folder: Path, value: str | None) -> EngineConfig:
    write_tiny_draft(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, FIELD: value}))
    return EngineConfig(target="tiny", draft=str(folder))


def test_a_draft_of_these_weights_is_loaded(tmp_path: Path) -> None:
    config = draft_with_fingerprint(tmp_path, target_fingerprint(tiny_target()))
    assert load_draft(config, tiny_target(), CPU).config.block_size == 4


def test_a_draft_of_other_weights_is_refused_unless_the_setting_allows_it(tmp_path: Path) -> None:
    config = draft_with_fingerprint(tmp_path, target_fingerprint(tiny_target(seed=1)))
    with pytest.raises(LoadError, match=r"target_fingerprint: found .*; accepted: .*allow_other"):
        load_draft(config, tiny_target(), CPU)
    allowed = EngineConfig(target="tiny", draft=config.draft, allow_other_target=True)
    assert load_draft(allowed, tiny_target(), CPU).config.block_size == 4


def test_a_draft_without_a_fingerprint_is_loaded(tmp_path: Path) -> None:
    assert (
        load_draft(draft_with_fingerprint(tmp_path, None), tiny_target(), CPU).config.block_size
        == 4
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_fingerprint_is_the_same_in_every_dtype(dtype: torch.dtype) -> None:
    published = tiny_model("llama").to(torch.bfloat16)
    prints = [
        target_fingerprint(describe_target(model, max_len=64, dtype=model.dtype))  # type: ignore[arg-type]
        for model in (published, tiny_model("llama").to(torch.bfloat16).to(dtype))
    ]
    assert prints[0] is not None
    assert prints[0] == prints[1]


def test_a_changed_row_or_shape_changes_the_fingerprint() -> None:
    matrix = torch.randn(300, 40)
    changed = matrix.clone()
    changed[0] += 1
    assert fingerprint_of([matrix]) == fingerprint_of([matrix.clone()])
    assert fingerprint_of([matrix]) != fingerprint_of([changed])
    assert fingerprint_of([matrix]) != fingerprint_of([matrix[:299]])


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", "qwen3_moe"])
def test_every_architecture_has_a_fingerprint_of_its_weights(name: str) -> None:
    prints = {target_fingerprint(tiny_target(name, seed=seed)) for seed in (0, 1)}
    assert len(prints) == 2
    assert None not in prints
