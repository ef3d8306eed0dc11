"""A draft knows its target."""

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


def named_draft(folder: Path, name: str | None) -> EngineConfig:
    write_tiny_draft(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, FIELD: name}))
    return EngineConfig(target="tiny", draft=str(folder))


def test_a_draft_of_these_weights_is_taken(tmp_path: Path) -> None:
    config = named_draft(tmp_path, target_fingerprint(tiny_target()))
    assert load_draft(config, tiny_target(), CPU).config.block_size == 4


def test_a_draft_of_other_weights_is_refused_with_the_way_around_it(tmp_path: Path) -> None:
    config = named_draft(tmp_path, target_fingerprint(tiny_target(seed=1)))
    with pytest.raises(LoadError, match=r"target_fingerprint: found .*; accepted: .*allow_other"):
        load_draft(config, tiny_target(), CPU)
    allowed = EngineConfig(target="tiny", draft=config.draft, allow_other_target=True)
    assert load_draft(allowed, tiny_target(), CPU).config.block_size == 4


def test_a_draft_that_names_no_target_is_taken(tmp_path: Path) -> None:
    assert load_draft(named_draft(tmp_path, None), tiny_target(), CPU).config.block_size == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_name_is_that_of_the_published_weights_in_any_format(dtype: torch.dtype) -> None:
    published = tiny_model("llama").to(torch.bfloat16)
    names = [
        target_fingerprint(describe_target(model, max_len=64, dtype=model.dtype))  # type: ignore[arg-type]
        for model in (published, tiny_model("llama").to(torch.bfloat16).to(dtype))
    ]
    assert names[0] is not None
    assert names[0] == names[1]


def test_one_changed_row_is_another_model_and_so_is_another_shape() -> None:
    matrix = torch.randn(300, 40)
    changed = matrix.clone()
    changed[0] += 1
    assert fingerprint_of([matrix]) == fingerprint_of([matrix.clone()])
    assert fingerprint_of([matrix]) != fingerprint_of([changed])
    assert fingerprint_of([matrix]) != fingerprint_of([matrix[:299]])


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", "qwen3_moe"])
def test_every_architecture_has_a_name_that_follows_its_weights(name: str) -> None:
    names = {target_fingerprint(tiny_target(name, seed=seed)) for seed in (0, 1)}
    assert len(names) == 2
    assert None not in names
