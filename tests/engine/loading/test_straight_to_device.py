"""Weights go to the device as they are read: the host never holds a whole model."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from draft.checkpoint import loading as draft_loading
from engine.loading.target import load_target
from tests.support.engine.tiny_models import (
    load_tiny_draft,
    tiny_model,
    tiny_target,
    write_tiny_draft,
)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_target_is_read_to_its_device_and_not_moved(tmp_path: Path, device: str) -> None:
    tiny_model("qwen3").save_pretrained(tmp_path)
    asked: list[Any] = []
    load = AutoModelForCausalLM.from_pretrained

    def recorded(path: str, *, device_map: Any, **options: Any) -> nn.Module:
        asked.append(device_map)
        model: nn.Module = load(path, **options)
        return model

    with (
        patch.object(AutoModelForCausalLM, "from_pretrained", recorded),
        patch.object(nn.Module, "to", side_effect=AssertionError("a model was moved")),
    ):
        load_target(
            str(tmp_path),
            revision=None,
            dtype=torch.float32,
            device=torch.device(device),
            trust_remote_code=False,
            max_model_len=None,
        )
    assert asked == [{"": torch.device(device)}]


def test_a_target_on_a_cpu_is_what_transformers_loads(tmp_path: Path) -> None:
    model = tiny_model("qwen3")
    model.save_pretrained(tmp_path)
    found = load_target(
        str(tmp_path),
        revision=None,
        dtype=torch.float32,
        device=torch.device("cpu"),
        trust_remote_code=False,
        max_model_len=None,
    ).model.state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(found[name], tensor), name


def test_a_draft_is_read_one_tensor_at_a_time(tmp_path: Path) -> None:
    folder = write_tiny_draft(tmp_path)
    target = tiny_target()
    waiting = SimpleNamespace(count=0, most=0)
    read, place = draft_loading.read_tensors, Tensor.to

    def counted_read(wanted: Any) -> Any:
        for name, tensor in read(wanted):
            waiting.count += 1
            waiting.most = max(waiting.most, waiting.count)
            yield name, tensor

    def counted_place(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        waiting.count = 0
        return place(self, *args, **kwargs)

    with (
        patch.object(draft_loading, "read_tensors", counted_read),
        patch.object(Tensor, "to", counted_place),
    ):
        load_tiny_draft(folder, target)
    assert waiting.most == 1
