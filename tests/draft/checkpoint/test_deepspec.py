"""DeepSpec configs: reading them and refusing them."""

import json
from pathlib import Path
from typing import Any

import pytest

from draft import (
    DecoderVariant,
    DraftLoadError,
    DSparkConfig,
    LayerConfig,
    TargetFacts,
    read_config,
)
from tests.support.draft.golden import FOLDERS, facts_of
from tests.support.draft.refusals import assert_names
from tests.support.paths import GOLDEN

VANILLA: dict[str, Any] = json.loads((GOLDEN / "vanilla" / "config.json").read_text())
FACTS = TargetFacts(hidden_size=64, num_layers=6, vocab_size=503)
DRAFT_FIELDS = (
    "block_size",
    "mask_token_id",
    "target_layer_ids",
    "markov_rank",
    "markov_head_type",
    "enable_confidence_head",
    "confidence_head_with_markov",
    "num_target_layers",
)


def read(folder: Path, config: object, target: TargetFacts = FACTS) -> DSparkConfig:
    (folder / "config.json").write_text(json.dumps(config))
    return read_config(folder, target=target)


def changed(**fields: object) -> dict[str, Any]:
    return VANILLA | fields


def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in VANILLA.items() if name not in names}


def test_a_config_is_read_completely(tmp_path: Path) -> None:
    assert read(tmp_path, VANILLA) == DSparkConfig(
        hidden_size=64,
        intermediate_size=128,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        vocab_size=503,
        rms_norm_eps=1e-6,
        attention_bias=False,
        layers=(LayerConfig(rope_theta=1e6),) * 3,
        block_size=5,
        mask_token_id=502,
        tap_layers=(0, 2, 4),
        markov_kind="vanilla",
        markov_rank=16,
        has_confidence_head=True,
        confidence_with_markov=True,
    )


@pytest.mark.parametrize("name", FOLDERS)
def test_every_reference_config_is_read(name: str) -> None:
    folder = GOLDEN / name
    config = read_config(folder, target=facts_of(folder))
    assert config.aux_size == 64 * len(config.tap_layers)


@pytest.mark.parametrize("name", ["block_size", "head_dim", "intermediate_size", "rms_norm_eps"])
@pytest.mark.parametrize("value", [10**400, -1, True, "5"])
def test_a_size_that_no_draft_has_is_refused_by_name(
    tmp_path: Path, name: str, value: object
) -> None:
    with pytest.raises(DraftLoadError, match=f"^draft {name}: found "):
        read(tmp_path, changed(**{name: value}))


def test_rank_zero_is_dflash_with_any_head_type(tmp_path: Path) -> None:
    config = changed(markov_rank=0, markov_head_type="strange", enable_confidence_head=False)
    found = read(tmp_path, config)
    assert (found.markov_kind, found.markov_rank) == (None, 0)
    assert not found.has_confidence_head


def test_an_absent_confidence_switch_means_on(tmp_path: Path) -> None:
    assert read(tmp_path, without("enable_confidence_head")).has_confidence_head


def test_without_sample_from_anchor_a_block_has_one_token_less(tmp_path: Path) -> None:
    found = read(tmp_path, changed(sample_from_anchor=False))
    assert (found.num_slots, found.block_size, found.sample_from_anchor) == (5, 4, False)


@pytest.mark.parametrize("nest", ["dspark_config", "dflash_config"])
def test_draft_fields_may_be_nested_as_other_engines_write_them(tmp_path: Path, nest: str) -> None:
    nested = without(*DRAFT_FIELDS) | {nest: {name: VANILLA[name] for name in DRAFT_FIELDS}}
    assert read(tmp_path, nested) == read(tmp_path, VANILLA)


def test_draft_fields_may_have_a_prefix(tmp_path: Path) -> None:
    prefixed = without(*DRAFT_FIELDS) | {f"dspark_{name}": VANILLA[name] for name in DRAFT_FIELDS}
    assert read(tmp_path, prefixed) == read(tmp_path, VANILLA)


def test_the_nearest_place_wins(tmp_path: Path) -> None:
    config = changed(
        dspark_config={"block_size": 6, "mask_token_id": 7},
        dflash_config={"block_size": 8, "markov_rank": 3},
        dspark_markov_rank=4,
    )
    assert read(tmp_path, config).block_size == VANILLA["block_size"]
    del config["block_size"], config["markov_rank"]
    found = read(tmp_path, config)
    assert (found.block_size, found.markov_rank) == (6, 3)


ROPE_PLACES = {
    "rope_parameters": {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
    "rope_parameters.full_attention": {
        "rope_parameters": {"full_attention": {"rope_theta": 5e5, "rope_type": "default"}}
    },
    "the top level": {"rope_theta": 500000, "rope_scaling": None},
    "the top level, with a default scaling": {
        "rope_theta": 5e5,
        "rope_scaling": {"type": "default"},
    },
}


@pytest.mark.parametrize("place", ROPE_PLACES)
def test_the_base_of_rope_is_found_in(tmp_path: Path, place: str) -> None:
    config = without("rope_parameters") | ROPE_PLACES[place]
    assert [layer.rope_theta for layer in read(tmp_path, config).layers] == [5e5] * 3


def test_rope_parameters_have_priority_over_rope_theta(tmp_path: Path) -> None:
    assert read(tmp_path, changed(rope_theta=1.0)).layers[0].rope_theta == 1e6


def test_sliding_layers_have_their_own_window_and_rope(tmp_path: Path) -> None:
    config = changed(
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        sliding_window=32,
        use_sliding_window=True,
        rope_parameters={
            "full_attention": {"rope_theta": 1e6},
            "sliding_attention": {"rope_theta": 1e4},
        },
    )
    sliding, full = LayerConfig(1e4, 32), LayerConfig(1e6, None)
    assert read(tmp_path, config).layers == (sliding, full, sliding)


@pytest.mark.parametrize(
    "fields",
    [
        {"sliding_window": None, "use_sliding_window": True},
        {"sliding_window": 32, "use_sliding_window": False},
    ],
)
def test_a_null_or_unused_window_is_no_window(tmp_path: Path, fields: dict[str, object]) -> None:
    config = changed(layer_types=["sliding_attention"] * 3, **fields)
    assert [layer.sliding_window for layer in read(tmp_path, config).layers] == [None] * 3


REFUSED: list[tuple[str, dict[str, object]]] = [
    ("architectures", {"architectures": ["LlamaForCausalLM"]}),
    ("architectures", {"architectures": []}),
    ("architectures", {"architectures": "Eagle3"}),
    ("hidden_size", {"hidden_size": 128}),
    ("vocab_size", {"vocab_size": 500}),
    ("num_target_layers", {"num_target_layers": 7}),
    ("num_hidden_layers", {"num_hidden_layers": 0}),
    ("num_hidden_layers", {"num_hidden_layers": True}),
    ("layer_types", {"layer_types": ["full_attention"]}),
    ("layer_types", {"layer_types": ["linear_attention"] * 3}),
    ("layer_types", {"layer_types": "full_attention"}),
    ("sliding_window", {"sliding_window": 0}),
    ("sliding_window", {"sliding_window": "wide"}),
    ("hidden_act", {"hidden_act": "gelu_pytorch_tanh"}),
    ("rms_norm_eps", {"rms_norm_eps": 0}),
    ("rms_norm_eps", {"rms_norm_eps": "small"}),
    ("attention_bias", {"attention_bias": 1}),
    ("num_key_value_heads", {"num_key_value_heads": 3}),
    ("head_dim", {"head_dim": 15}),
    ("block_size", {"block_size": 0}),
    ("block_size", {"block_size": 5.0}),
    ("mask_token_id", {"mask_token_id": 503}),
    ("mask_token_id", {"mask_token_id": -1}),
    ("target_layer_ids", {"target_layer_ids": []}),
    ("target_layer_ids", {"target_layer_ids": [0, 2, 2]}),
    ("target_layer_ids", {"target_layer_ids": [2, 0, 4]}),
    ("target_layer_ids", {"target_layer_ids": [-2, 0, 4]}),
    ("target_layer_ids", {"target_layer_ids": [0, 2, 5]}),
    ("target_layer_ids", {"target_layer_ids": [0, 2, 9]}),
    ("target_layer_ids", {"target_layer_ids": [0, 2, True]}),
    ("target_layer_ids", {"target_layer_ids": 3}),
    ("markov_rank", {"markov_rank": -1}),
    ("markov_head_type", {"markov_head_type": "cond"}),
    ("enable_confidence_head", {"enable_confidence_head": "yes"}),
    ("confidence_head_with_markov", {"markov_rank": 0}),
    ("sample_from_anchor", {"sample_from_anchor": "false"}),
    ("block_size", {"sample_from_anchor": False, "block_size": 1}),
    ("speculators_model_type", {"speculators_model_type": "eagle3"}),
    ("rope_theta", {"rope_parameters": None}),
    ("rope_parameters.rope_theta", {"rope_parameters": {"rope_theta": -1.0}}),
    ("rope_parameters", {"rope_parameters": 10_000}),
    ("rope_parameters.rope_type", {"rope_parameters": {"rope_theta": 1e6, "rope_type": "yarn"}}),
    (
        "rope_parameters.full_attention.rope_type",
        {"rope_parameters": {"full_attention": {"rope_theta": 1e6, "rope_type": "proportional"}}},
    ),
    ("rope_scaling.rope_type", {"rope_scaling": {"type": "linear", "factor": 2.0}}),
    ("partial_rotary_factor", {"partial_rotary_factor": 0.25}),
    (
        "rope_parameters.partial_rotary_factor",
        {"rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 0.5}},
    ),
]


@pytest.mark.parametrize(("field", "fields"), REFUSED)
def test_what_cannot_be_served_is_refused_in_one_line(
    tmp_path: Path, field: str, fields: dict[str, object]
) -> None:
    with pytest.raises(DraftLoadError) as refusal:
        read(tmp_path, changed(**fields))
    assert_names(refusal.value, field)


REQUIRED = (
    "architectures",
    "hidden_size",
    "vocab_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "rms_norm_eps",
    "block_size",
    "mask_token_id",
    "target_layer_ids",
    "markov_head_type",
    "confidence_head_with_markov",
)


@pytest.mark.parametrize("field", REQUIRED)
@pytest.mark.parametrize("null", [True, False])
def test_a_missing_field_is_named(tmp_path: Path, field: str, null: bool) -> None:
    config = changed(**{field: None}) if null else without(field)
    with pytest.raises(DraftLoadError) as refusal:
        read(tmp_path, config)
    assert_names(refusal.value, field)
    assert "found nothing" in str(refusal.value)


def test_an_unknown_architecture_is_refused_with_those_that_are_served(tmp_path: Path) -> None:
    with pytest.raises(DraftLoadError, match="found Llama4DSparkModel") as refusal:
        read(tmp_path, changed(architectures=["Llama4DSparkModel"]))
    assert "Qwen3DSparkModel or Gemma4DSparkModel" in str(refusal.value)


def test_a_gemma_config_gives_the_heads_of_its_global_layers_and_its_variant() -> None:
    folder = GOLDEN / "gemma4_shared_kv"
    config = read_config(folder, target=facts_of(folder))
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 1, 32)
    assert config.layers == (LayerConfig(rope_theta=1e6, rotary_fraction=0.25),) * 3
    assert config.variant == DecoderVariant(
        activation="gelu_tanh",
        attention_scale=1.0,
        values="normed_keys",
        norms_outputs=True,
        scales_layers=True,
        scales_embeddings=True,
        logit_cap=30.0,
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("enable_moe_block", True),
        ("hidden_size_per_layer_input", 8),
        ("num_kv_shared_layers", 1),
        ("use_double_wide_mlp", True),
        ("hidden_activation", "silu"),
        ("layer_types", ["sliding_attention"] * 3),
    ],
)
def test_parts_of_gemma_that_drafts_do_not_have_are_refused(
    tmp_path: Path, field: str, value: object
) -> None:
    folder = GOLDEN / "gemma4_shared_kv"
    config = json.loads((folder / "config.json").read_text()) | {field: value}
    with pytest.raises(DraftLoadError) as refusal:
        read(tmp_path, config, facts_of(folder))
    assert_names(refusal.value, field)


def test_an_empty_folder_has_no_config(tmp_path: Path) -> None:
    with pytest.raises(DraftLoadError) as refusal:
        read_config(tmp_path, target=FACTS)
    assert_names(refusal.value, "config.json")


@pytest.mark.parametrize("text", ["{", "[]", "null", '"config"', "\x00"])
def test_a_config_that_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(DraftLoadError) as refusal:
        read_config(tmp_path, target=FACTS)
    assert_names(refusal.value, "config.json")
