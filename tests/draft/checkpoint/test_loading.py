"""Checkpoint files: loading a network from them, and refusing them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from draft import DraftLoadError, DSparkNetwork, TargetFacts, load_network, read_config
from tests.support.draft.golden import FOLDERS, facts_of
from tests.support.draft.refusals import assert_names
from tests.support.draft.serving import Served, prompts_of
from tests.support.draft.tiny import CPU
from tests.support.paths import GOLDEN, PRETRAINED


class Checkpoint:
    """Holds a copy of a golden checkpoint; tests change it before they save it."""

    def __init__(self, folder: Path, name: str = "vanilla", **config: object) -> None:
        self.folder = folder
        self.config: dict[str, Any] = json.loads((GOLDEN / name / "config.json").read_text())
        self.config |= config
        self.facts = facts_of(GOLDEN / name)
        self.tensors = load_file(GOLDEN / name / "model.safetensors")
        self.embedding = self.tensors["embed_tokens.weight"].clone()
        self.lm_head = self.tensors["lm_head.weight"].clone()

    def save(self) -> None:
        save_file(self.tensors, self.folder / "model.safetensors")

    def load(self, *, dtype: torch.dtype = torch.float32) -> DSparkNetwork:
        (self.folder / "config.json").write_text(json.dumps(self.config))
        return load_network(
            self.folder,
            read_config(self.folder, target=self.facts),
            embedding=self.embedding,
            lm_head=self.lm_head,
            dtype=dtype,
            device=CPU,
            max_positions=32,
        )


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path)


@pytest.mark.parametrize("name", FOLDERS)
def test_every_tensor_of_the_checkpoint_arrives(tmp_path: Path, name: str) -> None:
    checkpoint = Checkpoint(tmp_path, name)
    checkpoint.save()
    loaded = checkpoint.load().state_dict()
    assert loaded.keys() == checkpoint.tensors.keys()
    for tensor_name, tensor in checkpoint.tensors.items():
        assert torch.equal(loaded[tensor_name], tensor)


def test_the_parameter_count_is_the_published_formula(checkpoint: Checkpoint) -> None:
    checkpoint.save()
    network = checkpoint.load()
    vocab, h, taps, layers, r, inner, heads, kv_heads, d = 503, 64, 3, 3, 16, 128, 4, 2, 16
    layer = 2 * h + 2 * h * heads * d + 2 * h * kv_heads * d + 2 * d + 3 * h * inner
    expected = 2 * vocab * h + taps * h**2 + 2 * h + layers * layer + 2 * vocab * r + (h + r + 1)
    assert sum(parameter.numel() for parameter in network.parameters()) == expected


def test_embedding_and_head_alias_the_targets_memory(checkpoint: Checkpoint) -> None:
    checkpoint.save()
    network = checkpoint.load()
    assert network.embed_tokens.weight.data_ptr() == checkpoint.embedding.data_ptr()
    assert network.lm_head.weight.data_ptr() == checkpoint.lm_head.data_ptr()


def test_the_target_keeps_its_parameters_as_they_were(checkpoint: Checkpoint) -> None:
    checkpoint.embedding = nn.Parameter(checkpoint.embedding)
    checkpoint.save()
    network = checkpoint.load()
    assert checkpoint.embedding.requires_grad
    assert network.embed_tokens.weight is not checkpoint.embedding


@pytest.mark.parametrize("dropped", [["embed_tokens.weight"], ["lm_head.weight"]])
def test_a_checkpoint_may_lack_embedding_or_head(
    checkpoint: Checkpoint, dropped: list[str]
) -> None:
    for name in dropped:
        del checkpoint.tensors[name]
    checkpoint.save()
    network = checkpoint.load()
    assert torch.equal(network.embed_tokens.weight, checkpoint.embedding)
    assert torch.equal(network.lm_head.weight, checkpoint.lm_head)


class _Packed(nn.Parameter):
    """Stands in for a packed matrix of a quantised target."""


def test_a_quantised_target_requires_the_checkpoints_embedding(checkpoint: Checkpoint) -> None:
    own = checkpoint.embedding
    checkpoint.embedding = _Packed(torch.zeros_like(own))
    checkpoint.save()
    assert torch.equal(checkpoint.load().embed_tokens.weight, own)
    del checkpoint.tensors["embed_tokens.weight"]
    checkpoint.save()
    assert_refused(checkpoint, "embed_tokens.weight", "found nothing")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_are_cast_except_the_confidence_head(
    checkpoint: Checkpoint, dtype: torch.dtype
) -> None:
    checkpoint.save()
    for name, tensor in checkpoint.load(dtype=dtype).state_dict().items():
        wanted = torch.float32 if name.startswith("confidence_head.") else dtype
        assert tensor.dtype == wanted, name


def test_no_parameter_requires_a_gradient(checkpoint: Checkpoint) -> None:
    checkpoint.save()
    assert not any(parameter.requires_grad for parameter in checkpoint.load().parameters())


def test_shards_are_read_through_their_index(checkpoint: Checkpoint) -> None:
    names = sorted(checkpoint.tensors)
    save_shards(checkpoint, {"a.safetensors": names[::2], "b.safetensors": names[1::2]})
    loaded = checkpoint.load().state_dict()
    assert all(torch.equal(loaded[name], t) for name, t in checkpoint.tensors.items())


def test_rotary_buffers_are_ignored(checkpoint: Checkpoint) -> None:
    checkpoint.tensors["layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    checkpoint.save()
    checkpoint.load()


UNKNOWN = (
    "markov_head.cond_proj.weight",
    "markov_head.gate_proj.weight",
    "confidence_head.norm.weight",
    "layers.3.input_layernorm.weight",
    "layers.0.self_attn.k_proj.bias",
    "model.norm.weight",
    "fc.bias",
)


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_tensor_is_refused(checkpoint: Checkpoint, name: str) -> None:
    checkpoint.tensors[name] = torch.ones(3)
    checkpoint.save()
    assert_refused(checkpoint, name, "found [3]")


MISSING = (
    "fc.weight",
    "hidden_norm.weight",
    "norm.weight",
    "layers.1.self_attn.k_norm.weight",
    "layers.2.mlp.up_proj.weight",
    "markov_head.markov_w1.weight",
    "markov_head.markov_w2.weight",
    "confidence_head.proj.weight",
    "confidence_head.proj.bias",
)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 1e9])
def test_numbers_that_are_not_finite_in_the_dtype_in_use_are_refused(
    checkpoint: Checkpoint, wrong: float
) -> None:
    checkpoint.tensors["fc.weight"][3, 4] = wrong
    checkpoint.save()
    with pytest.raises(
        DraftLoadError, match=r"fc\.weight: found NaN or infinity in torch\.float16"
    ):
        checkpoint.load(dtype=torch.float16)


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_tensor_is_refused(checkpoint: Checkpoint, name: str) -> None:
    del checkpoint.tensors[name]
    checkpoint.save()
    assert_refused(checkpoint, name, "found nothing")


@pytest.mark.parametrize(
    ("name", "missing"),
    [("gated_bias", "markov_head.gate_proj.bias"), ("rnn_noconf", "markov_head.joint_proj.weight")],
)
def test_a_head_without_its_own_projection_is_refused(
    tmp_path: Path, name: str, missing: str
) -> None:
    checkpoint = Checkpoint(tmp_path, name)
    del checkpoint.tensors[missing]
    checkpoint.save()
    assert_refused(checkpoint, missing, "found nothing")


SHAPES = (
    "fc.weight",
    "embed_tokens.weight",
    "lm_head.weight",
    "layers.0.self_attn.q_proj.weight",
    "markov_head.markov_w1.weight",
    "confidence_head.proj.weight",
)


@pytest.mark.parametrize("name", SHAPES)
def test_a_tensor_of_another_shape_is_refused(checkpoint: Checkpoint, name: str) -> None:
    rows, columns = checkpoint.tensors[name].shape
    checkpoint.tensors[name] = torch.ones(rows, columns + 1)
    checkpoint.save()
    assert_refused(checkpoint, name, f"accepted: [{rows}, {columns}]")


def test_a_tensor_of_integers_is_refused(checkpoint: Checkpoint) -> None:
    checkpoint.tensors["fc.weight"] = checkpoint.tensors["fc.weight"].to(torch.int8)
    checkpoint.save()
    assert_refused(checkpoint, "fc.weight", "found I8")


def test_a_tied_draft_is_refused_for_an_untied_target(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, tie_word_embeddings=True)
    del checkpoint.tensors["lm_head.weight"]
    checkpoint.save()
    assert_refused(checkpoint, "tie_word_embeddings", "two matrices")
    checkpoint.lm_head = checkpoint.embedding
    assert torch.equal(checkpoint.load().lm_head.weight, checkpoint.embedding)


def test_a_tied_draft_may_contain_one_matrix_for_both(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, tie_word_embeddings=True)
    own = checkpoint.embedding
    checkpoint.embedding = checkpoint.lm_head = _Packed(torch.zeros_like(own))
    del checkpoint.tensors["lm_head.weight"]
    checkpoint.save()
    network = checkpoint.load()
    assert torch.equal(network.embed_tokens.weight, own)
    assert torch.equal(network.lm_head.weight, own)


def test_a_folder_without_weights_is_refused(checkpoint: Checkpoint) -> None:
    assert_refused(checkpoint, "model.safetensors", "found nothing")


def test_a_broken_file_is_refused(checkpoint: Checkpoint) -> None:
    (checkpoint.folder / "model.safetensors").write_bytes(b"not safetensors")
    assert_refused(checkpoint, "model.safetensors", "accepted: a safetensors file")


def test_a_missing_shard_is_refused(checkpoint: Checkpoint) -> None:
    names = sorted(checkpoint.tensors)
    save_shards(checkpoint, {"a.safetensors": names[::2], "b.safetensors": names[1::2]})
    (checkpoint.folder / "b.safetensors").unlink()
    assert_refused(checkpoint, "b.safetensors", "found nothing")


def test_a_name_in_two_shards_is_refused(checkpoint: Checkpoint) -> None:
    names = sorted(checkpoint.tensors)
    save_shards(checkpoint, {"a.safetensors": names, "b.safetensors": ["fc.weight"]})
    assert_refused(checkpoint, "fc.weight", "found a.safetensors")


@pytest.mark.parametrize(
    "index", [{}, {"weight_map": {}}, {"weight_map": ["a"]}, {"weight_map": {"x": "../x"}}]
)
def test_a_bad_index_is_refused(checkpoint: Checkpoint, index: object) -> None:
    (checkpoint.folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert_refused(checkpoint, "model.safetensors.index.json weight_map", "accepted: ")


def test_the_shipped_draft_fits_its_target() -> None:
    facts = TargetFacts(hidden_size=576, num_layers=30, vocab_size=49152)
    embedding = torch.randn(facts.vocab_size, facts.hidden_size)
    config = read_config(PRETRAINED, target=facts)
    network = load_network(
        PRETRAINED,
        config,
        embedding=embedding,
        lm_head=embedding,
        dtype=torch.float32,
        device=CPU,
        max_positions=128,
    )
    assert (config.block_size, config.tap_layers) == (5, (1, 8, 14, 20, 27))
    assert config.draft_vocab_size == 24576
    served = Served(network, prompts_of(network, [9]))
    block = served.proposer.propose(served.request())
    assert block.draft_ids.shape == (1, 5)
    assert block.confidence_logits is not None
    assert block.confidence_logits.isfinite().all()
    aliased = {"embed_tokens.weight", "lm_head.weight"}
    own = sum(p.numel() for name, p in network.named_parameters() if name not in aliased)
    assert own == pytest.approx(13.5e6, rel=0.01)


def save_shards(checkpoint: Checkpoint, shards: dict[str, list[str]]) -> None:
    weight_map: dict[str, str] = {}
    for file, names in shards.items():
        part: dict[str, Tensor] = {name: checkpoint.tensors[name] for name in names}
        save_file(part, checkpoint.folder / file)
        weight_map |= dict.fromkeys(names, file)
    index = {"weight_map": weight_map}
    (checkpoint.folder / "model.safetensors.index.json").write_text(json.dumps(index))


def assert_refused(checkpoint: Checkpoint, field: str, text: str) -> None:
    with pytest.raises(DraftLoadError) as refusal:
        checkpoint.load()
    assert_names(refusal.value, field)
    assert text in str(refusal.value)


def test_a_deepspec_checkpoint_may_have_a_draft_vocabulary(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, draft_vocab_size=40)
    target_ids = torch.arange(40) * 7 + 3
    checkpoint.tensors["d2t"] = target_ids - torch.arange(40)
    w2 = checkpoint.tensors["markov_head.markov_w2.weight"][target_ids]
    checkpoint.tensors["markov_head.markov_w2.weight"] = w2
    for name in ("embed_tokens.weight", "lm_head.weight"):
        del checkpoint.tensors[name]
    checkpoint.save()
    network = checkpoint.load()
    assert torch.equal(network.lm_head.weight, checkpoint.lm_head[target_ids])
    assert network.embed_tokens.weight.data_ptr() == checkpoint.embedding.data_ptr()
    served = Served(network, prompts_of(network, [9, 4]))
    assert set(served.proposer.propose(served.request()).draft_ids.flatten().tolist()) <= set(
        target_ids.tolist()
    )


def test_a_deepspec_draft_vocabulary_needs_its_map(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, draft_vocab_size=40)
    checkpoint.save()
    assert_refused(checkpoint, "d2t", "found nothing")
