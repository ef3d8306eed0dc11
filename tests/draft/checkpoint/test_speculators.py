"""speculators checkpoints: reading, loading and refusing them."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from draft import (
    DraftLoadError,
    DSparkConfig,
    DSparkNetwork,
    LayerConfig,
    TargetFacts,
    load_network,
    read_config,
)
from tests.support.draft.naive import naive_hidden, naive_predictions
from tests.support.draft.refusals import assert_names
from tests.support.draft.serving import Served, prompts_of
from tests.support.draft.speculators_files import (
    DIM,
    HEADS,
    INNER,
    KV_HEADS,
    RANK,
    SpeculatorsDraft,
)
from tests.support.draft.tiny import CPU

HIDDEN, VOCAB, TARGET_LAYERS, DRAFT_VOCAB = 32, 61, 6, 24
FACTS = TargetFacts(hidden_size=HIDDEN, num_layers=TARGET_LAYERS, vocab_size=VOCAB)


def draft_of(**fields: Any) -> SpeculatorsDraft:
    return SpeculatorsDraft(hidden=HIDDEN, vocab=VOCAB, **fields)


def read(draft: SpeculatorsDraft, folder: Path) -> DSparkConfig:
    return read_config(draft.save(folder), target=FACTS)


def embedding() -> torch.Tensor:
    return torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(9))


def load(
    draft: SpeculatorsDraft, folder: Path, *, lm_head: torch.Tensor | None = None
) -> DSparkNetwork:
    config = read(draft, folder)
    return load_network(
        folder,
        config,
        embedding=embedding(),
        lm_head=embedding() if lm_head is None else lm_head,
        dtype=torch.float32,
        device=CPU,
        max_positions=40,
    )


def test_a_speculators_config_becomes_canonical(tmp_path: Path) -> None:
    draft = draft_of(draft_vocab=DRAFT_VOCAB, taps=(0, 2, 5), sample_from_anchor=False)
    assert read(draft, tmp_path) == DSparkConfig(
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=DIM,
        vocab_size=VOCAB,
        rms_norm_eps=1e-6,
        attention_bias=False,
        layers=(LayerConfig(rope_theta=20000.0),) * 2,
        block_size=4,  # of 5 slots one predicts nothing
        mask_token_id=VOCAB - 1,
        tap_layers=(-1, 1, 4),
        markov_kind="vanilla",
        markov_rank=RANK,
        has_confidence_head=True,
        confidence_with_markov=True,
        sample_from_anchor=False,
        draft_vocab_size=DRAFT_VOCAB,
    )


@pytest.mark.parametrize(("samples", "block_size"), [(True, 8), (False, 7)])
def test_eight_slots_are_the_default(tmp_path: Path, samples: bool, block_size: int) -> None:
    draft = draft_of(sample_from_anchor=samples)
    del draft.config["block_size"]
    config = read(draft, tmp_path)
    assert (config.num_slots, config.block_size) == (8, block_size)


def test_an_absent_convention_is_the_formats_default_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    draft = draft_of()
    del draft.config["sample_from_anchor"]
    with caplog.at_level(logging.INFO):
        assert read(draft, tmp_path).sample_from_anchor
    (record,) = caplog.records
    assert "exported before the field existed were trained with false" in record.getMessage()


def test_a_given_convention_logs_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    read(draft_of(), tmp_path)
    assert not caplog.records


def test_layers_left_out_of_the_file_are_those_of_qwen3(tmp_path: Path) -> None:
    draft = draft_of()
    for name in ("head_dim", "num_attention_heads", "rope_parameters", "model_type"):
        del draft.layers[name]
    config = read(draft, tmp_path)
    assert (config.head_dim, config.num_heads) == (128, 32)
    assert config.layers[0].rope_theta == 10_000.0


@pytest.mark.parametrize("non_causal", [False, True])
def test_sliding_layers_are_causal_within_a_block_unless_declared_otherwise(
    tmp_path: Path, non_causal: bool
) -> None:
    kinds = ["sliding_attention", "full_attention"]
    fields = {"layer_types": kinds, "use_sliding_window": True, "sliding_window": 7}
    draft = draft_of(layer_fields=fields, sliding_window_non_causal=non_causal)
    theta = 20000.0
    assert read(draft, tmp_path).layers == (
        LayerConfig(theta, 7, causal=not non_causal),
        LayerConfig(theta),
    )


def test_a_draft_vocabulary_as_large_as_the_targets_is_none(tmp_path: Path) -> None:
    assert read(draft_of(), tmp_path).draft_vocab_size is None


KINDS = {
    "the anchor predicts a token": {},
    "the anchor predicts nothing": {"sample_from_anchor": False},
    "the anchor predicts nothing, rnn": {"sample_from_anchor": False, "kind": "rnn"},
    "draft vocabulary": {"draft_vocab": DRAFT_VOCAB},
    "draft vocabulary, the anchor predicts nothing": {
        "draft_vocab": DRAFT_VOCAB,
        "sample_from_anchor": False,
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_draft_proposes_what_the_formulas_give(tmp_path: Path, kind: str) -> None:
    draft = draft_of(**KINDS[kind])  # type: ignore[arg-type]
    network = load(draft, tmp_path)
    with torch.inference_mode():
        for prompt in prompts_of(network, (9, 0, 17)):
            served = Served(network, [prompt])
            ids = served.proposer.propose(served.request()).draft_ids[0].tolist()
            hidden = naive_hidden(network, prompt.aux_hidden, prompt.anchor_id).float()
            probs, _ = naive_predictions(network, hidden, prompt.anchor_id, ids)
            assert probs.argmax(-1).tolist() == ids
            if "draft_vocab" in KINDS[kind]:
                assert set(ids) <= set(draft.target_ids.tolist())


def test_the_head_is_the_targets_rows_of_the_draft_vocabulary(tmp_path: Path) -> None:
    draft = draft_of(draft_vocab=DRAFT_VOCAB)
    network = load(draft, tmp_path)
    assert torch.equal(network.lm_head.weight, embedding()[draft.target_ids])
    assert network.vocabulary is not None
    assert torch.equal(network.vocabulary.target_ids, draft.target_ids)


def test_the_checkpoints_head_has_priority_over_the_targets_rows(tmp_path: Path) -> None:
    draft = draft_of(draft_vocab=DRAFT_VOCAB)
    own = torch.randn(DRAFT_VOCAB, HIDDEN)
    draft.tensors["lm_head.weight"] = own
    assert torch.equal(load(draft, tmp_path).lm_head.weight, own)


class _Packed(nn.Parameter):
    """Stands in for a packed matrix of a quantised target."""


def test_a_draft_vocabulary_needs_its_head_if_the_target_is_quantised(tmp_path: Path) -> None:
    draft = draft_of(draft_vocab=DRAFT_VOCAB)
    with pytest.raises(DraftLoadError, match=r"draft lm_head.weight: found nothing"):
        load(draft, tmp_path, lm_head=_Packed(embedding()))


def test_the_mask_may_be_left_out(tmp_path: Path) -> None:
    draft = draft_of(draft_vocab=DRAFT_VOCAB)
    del draft.tensors["t2d"]
    assert load(draft, tmp_path).lm_head.weight.shape == (DRAFT_VOCAB, HIDDEN)


def test_copies_of_the_verifier_are_ignored(tmp_path: Path) -> None:
    draft = draft_of()
    draft.tensors["verifier_norm.weight"] = torch.ones(HIDDEN)
    draft.tensors["verifier_lm_head.weight"] = torch.ones(VOCAB, HIDDEN)
    load(draft, tmp_path)


def test_maps_of_the_whole_vocabulary_must_be_the_identity(tmp_path: Path) -> None:
    draft = draft_of()
    draft.set_vocabulary(torch.arange(VOCAB))
    assert load(draft, tmp_path).vocabulary is None
    draft.set_vocabulary(torch.arange(VOCAB).flip(0))
    del draft.tensors["t2d"]
    with pytest.raises(DraftLoadError, match="draft d2t: found offsets, accepted: zeros"):
        load(draft, tmp_path)


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("speculators_model_type", {"speculators_model_type": "eagle3"}),
    ("block_size", {"block_size": 1, "sample_from_anchor": False}),
    ("sample_from_anchor", {"sample_from_anchor": "no"}),
    ("aux_hidden_state_layer_ids", {"aux_hidden_state_layer_ids": None}),
    ("aux_hidden_state_layer_ids", {"taps": (1, 3, 6)}),
    ("aux_hidden_state_layer_ids", {"taps": (-1, 3)}),
    ("draft_vocab_size", {"draft_vocab_size": VOCAB + 1}),
    ("draft_vocab_size", {"draft_vocab_size": None}),
    ("mask_token_id", {"mask_token_id": None}),
    ("markov_head_type", {"markov_head_type": "cond"}),
    ("target_hidden_size", {"target_hidden_size": 64}),
    ("transformer_layer_config.hidden_size", {"layer_fields": {"hidden_size": 64}}),
    ("transformer_layer_config.vocab_size", {"layer_fields": {"vocab_size": 7}}),
    ("transformer_layer_config.model_type", {"layer_fields": {"model_type": "llama"}}),
    ("transformer_layer_config.num_key_value_heads", {"layer_fields": {"num_key_value_heads": 3}}),
    ("transformer_layer_config.head_dim", {"layer_fields": {"head_dim": 11}}),
    ("transformer_layer_config.layer_types", {"layer_fields": {"layer_types": ["full_attention"]}}),
    (
        "transformer_layer_config.rope_parameters.rope_type",
        {"layer_fields": {"rope_parameters": {"rope_theta": 1e4, "rope_type": "yarn"}}},
    ),
]


@pytest.mark.parametrize(("field", "fields"), REFUSED)
def test_what_cannot_be_served_is_refused_in_one_line(
    tmp_path: Path, field: str, fields: dict[str, Any]
) -> None:
    with pytest.raises(DraftLoadError) as refusal:
        read(draft_of(**fields), tmp_path)
    assert_names(refusal.value, field)


def test_a_config_without_layers_is_refused(tmp_path: Path) -> None:
    draft = draft_of()
    draft.layers = None  # type: ignore[assignment]
    with pytest.raises(DraftLoadError) as refusal:
        read(draft, tmp_path)
    assert_names(refusal.value, "transformer_layer_config")


def _break_maps(draft: SpeculatorsDraft, name: str) -> str:
    """Break the maps in one way; return the field that the error must name."""
    tensors, target_ids = draft.tensors, draft.target_ids
    match name:
        case "no offsets":
            del tensors["d2t"]
            return "d2t"
        case "too few offsets":
            tensors["d2t"] = tensors["d2t"][1:].clone()
            return "d2t"
        case "offsets in floats":
            tensors["d2t"] = tensors["d2t"].float()
            return "d2t"
        case "a target id past the end":
            tensors["d2t"][3] = VOCAB
            return "d2t[3]"
        case "a negative target id":
            tensors["d2t"][2] = -3
            return "d2t[2]"
        case "a target id twice":
            tensors["d2t"][2] -= 2
            return "d2t"
        case "a mask of integers":
            tensors["t2d"] = tensors["t2d"].long()
            return "t2d"
        case "a short mask":
            tensors["t2d"] = tensors["t2d"][1:].clone()
            return "t2d"
        case "a mask of other tokens":
            tensors["t2d"][target_ids[0]], tensors["t2d"][target_ids[0] + 1] = False, True
            return "t2d"
        case "tokens in another order":
            order = torch.tensor([1, 0, *range(2, DRAFT_VOCAB)])
            tensors["d2t"] = target_ids[order] - torch.arange(DRAFT_VOCAB)
            return "t2d"
        case "a head of the whole vocabulary":
            tensors["lm_head.weight"] = torch.ones(VOCAB, HIDDEN)
            return "lm_head.weight"
    raise AssertionError(name)


@pytest.mark.parametrize(
    "name",
    [
        "no offsets",
        "too few offsets",
        "offsets in floats",
        "a target id past the end",
        "a negative target id",
        "a target id twice",
        "a mask of integers",
        "a short mask",
        "a mask of other tokens",
        "tokens in another order",
        "a head of the whole vocabulary",
    ],
)
def test_maps_that_do_not_fit_are_refused(tmp_path: Path, name: str) -> None:
    draft = draft_of(draft_vocab=DRAFT_VOCAB)
    field = _break_maps(draft, name)
    with pytest.raises(DraftLoadError) as refusal:
        load(draft, tmp_path)
    assert_names(refusal.value, field)
