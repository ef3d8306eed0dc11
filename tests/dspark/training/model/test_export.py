"""An exported draft equals the trained one."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from draft import TargetFacts, load_network, read_config
from draft.config import gemma4_variant
from dspark.training.model.export import export_draft
from dspark.training.run.curves import draw_curves
from dspark.training.run.trainer import StepReport
from dspark.training.run.training_log import TrainingLog
from dspark.training.run.validation import Validation
from tests.support.draft.tiny import CPU, GEMMA4, random_network, tiny_config
from tests.support.full_disk import room_for


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"markov_kind": "rnn"},
        {"confidence_with_markov": False},
        {"draft_vocab_size": 23},
        {"layers": GEMMA4.layers, "variant": GEMMA4.variant},
        {"variant": gemma4_variant(shares_kv=False, logit_cap=None)},
    ],
)
def test_an_exported_draft_loads_as_it_was(tmp_path: Path, changes: dict[str, object]) -> None:
    config = tiny_config(**changes)
    network = random_network(config)
    head = torch.randn(config.vocab_size, config.hidden_size)
    if network.vocabulary is not None:
        with torch.no_grad():
            network.lm_head.get_parameter("weight").copy_(head[network.vocabulary.target_ids])
    else:
        head = network.lm_head.get_parameter("weight")
    export_draft(network, tmp_path, more={"target_fingerprint": "abc"}, num_target_layers=6)
    found = read_config(tmp_path, target=TargetFacts(32, 6, config.vocab_size))
    assert found == config
    loaded = load_network(
        tmp_path,
        found,
        embedding=network.embed_tokens.weight,
        lm_head=head,
        dtype=torch.float32,
        device=CPU,
        max_positions=64,
    )
    other = dict(network.named_parameters())
    for name, parameter in loaded.named_parameters():
        torch.testing.assert_close(parameter, other[name], atol=0, rtol=2**-8)
    if network.vocabulary is not None:
        assert loaded.vocabulary is not None
        assert torch.equal(loaded.vocabulary.target_ids, network.vocabulary.target_ids)
    assert json.loads((tmp_path / "config.json").read_text())["target_fingerprint"] == "abc"


def test_embedding_and_head_are_not_exported(tmp_path: Path) -> None:
    export_draft(random_network(), tmp_path, more={}, num_target_layers=6)
    tensors = load_file(tmp_path / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert not {"embed_tokens.weight", "lm_head.weight"} & set(tensors)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def report(step: int) -> StepReport:
    return StepReport(step, 2.0 / step, 1.0, 0.5, 1e-3, 0.7, 40)


def test_a_rewound_log_has_each_step_once(tmp_path: Path) -> None:
    log = TrainingLog(path=tmp_path / "training.jsonl")
    for step in (1, 2, 3):
        log.step(report(step))
    log.validation(3, Validation.of([0.5, 0.25], 0.1, 2))
    with (tmp_path / "training.jsonl").open("a") as file:
        file.write('{"kind": "st')
    log.rewind(2)
    log.step(report(3))
    assert [(e["kind"], e["step"]) for e in log.entries()] == [("step", step) for step in (1, 2, 3)]


def test_a_full_disk_leaves_complete_lines_of_the_log(tmp_path: Path) -> None:
    log = TrainingLog(path=tmp_path / "training.jsonl")
    log.step(report(1))
    before = (tmp_path / "training.jsonl").read_text()
    with room_for(len(before) + 10), pytest.raises(OSError, match=r"too large: .*training.jsonl"):
        log.step(report(2))
    assert (tmp_path / "training.jsonl").read_text() == before


def test_a_full_disk_leaves_nothing_of_an_export(tmp_path: Path) -> None:
    with room_for(1000), pytest.raises(OSError, match=r"model.safetensors cannot be written"):
        export_draft(random_network(), tmp_path, more={}, num_target_layers=5)
    assert list(tmp_path.iterdir()) == []


def test_curves_are_a_picture(tmp_path: Path) -> None:
    log = TrainingLog(path=tmp_path / "training.jsonl")
    for step in (1, 2):
        log.step(report(step))
        log.validation(step, Validation.of([0.5, 0.25], None, 2))
    draw_curves(log.entries(), tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    draw_curves(log.entries()[:1], tmp_path / "curves.png")
