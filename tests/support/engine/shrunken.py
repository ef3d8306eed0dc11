"""Shrinks the default config of any decoder class of transformers, to try it as a target.

Fields are recognised by name. Every kind of layer of the default config stays, and in a second form
restrictions of attention that are off by default are on.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from transformers import CONFIG_MAPPING

VOCAB = 97
LAYERS = 4
WINDOW = 30  # more than the tokens of the shortest check
_HEADS, _HEAD_DIM, _HIDDEN = 4, 8, 32

# The first pattern that matches a field's whole name gives its value, where the default is above 0.
_SIZES: tuple[tuple[str, int], ...] = (
    (r"(.*_)?vocab_size(_.*)?", VOCAB),
    (r"num_hidden_layers|n_layers?|num_layers|(decoder|encoder)_layers", LAYERS),
    (r"num_(encoder|decoder)_layers", LAYERS),
    (r"(.*_)?(num_key_value_heads|kv_n_heads|num_kv_heads|num_query_groups)", 2),
    (r"(.*_)?(num_attention_heads|n_heads?|num_heads|attention_heads|num_key_heads)", _HEADS),
    (r"linear_num_value_heads", _HEADS),
    (
        r"hidden_size|d_model|n_embd|dim|hidden_dim|embed_dim|embedding_size|embedding_dim|emb_dim",
        _HIDDEN,
    ),
    (r"word_embed_proj_dim|hidden_size_global|dim_model", _HIDDEN),
    (r"attention_hidden_size", _HEADS * _HEAD_DIM),
    (r".*(intermediate_size|ffn_dim|ffn_size|d_ff|dim_ff|ffn_hidden_size|n_inner)(_mlp)?", 48),
    (r"feed_forward_size|.*(mlp_dim|inner_dim)", 48),
    (r".*head_dim|d_kv|attention_head_size|dim_head|kv_channels", _HEAD_DIM),
    (r".*lora_rank", 16),
    (r"rotary_dim", _HEAD_DIM),
    (r"max_position_embeddings|n_positions|max_seq_len|n_ctx|max_target_positions", 256),
    (r".*(sliding_window|window_size|attention_window|window_len)(_size)?", WINDOW),
    (r".*(experts_per_tok|moe_topk|moe_top_k|top_k_experts|num_selected_experts|moe_k)", 2),
    (r".*(num_(local_)?experts|n_routed_experts|moe_num_experts|zero_expert_num)", 4),
    (r"n_group|topk_group|num_expert_group", 1),
    (r"first_k_dense_replace|num_dense_layers|num_kv_shared_layers", 1),
    (r"vocab_size_per_layer_input|.*_vocab|.*vocab_size_base", VOCAB),
    (r"hidden_size_per_layer_input|laurel_rank|mamba_dt_rank|adapter_rank", 8),
    (r"index_topk|index_block_size|.*chunk_length", 8),
)
# Fields that are None by default although the class needs a value, or that depend on each other.
_NEEDED: Mapping[str, Mapping[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "dory": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_hidden_layers": LAYERS,
        "n_input_layers": 1,
        "n_recurrent_layers": 2,
        "n_output_layers": 1,
    },
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "dots3_note": {"per_layer_config": None},
    "dots3_note_text": {"per_layer_config": None},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}},
    "gemma4_assistant": {
        "text_config": {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "hunyuan_v1_dense": {"head_dim": _HEAD_DIM},
    "hunyuan_v1_moe": {"head_dim": _HEAD_DIM, "num_experts": 4, "moe_topk": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "longcat_flash": {"qk_head_dim": 2 * _HEAD_DIM},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1, "state_size": 8},
    "ministral": {"head_dim": _HEAD_DIM},
    "nemotron": {"head_dim": _HEAD_DIM, "num_key_value_heads": 2},
    "qwen4_exp_text": {"ngram_vocab_size_base": 64, "split_ngram_parts": 1},
    "reformer": {"is_decoder": True, "axial_pos_shape": [16, 16], "axial_pos_embds_dim": [8, 24]},
    "zamba2": {"hybrid_layer_ids": [1, 3]},
    "zaya": {"num_experts_per_tok": 1},
}
_ROPE_BY_KIND = {
    "cohere_compass_text": {
        "full_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }
}
# Restrictions of attention, and the value that switches each on.
_ON: Mapping[str, Any] = {
    "sliding_window": WINDOW,
    "use_sliding_window": True,
    "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 5.0,
    "alibi": True,
    "clip_qkv": 0.5,
    "max_window_layers": 1,
}
_KINDS = ("layer_types", "layers_block_type", "mlp_layer_types")


def shrunken_configs(model_type: str) -> Iterator[tuple[str, Any]]:
    """Yield a small config of a class, and one in which every restriction is on, if that differs.

    Raises whatever the class raises for the first.
    """
    plain = _build(model_type, {})
    yield "by default", plain
    on = _switched_on(plain.get_text_config() if _has_one_text(plain) else plain)
    if on:
        try:
            yield f"with {', '.join(on)}", _build(model_type, on)
        except Exception:  # the class refuses the combination
            return


def _build(model_type: str, more: Mapping[str, Any]) -> Any:
    config_class = CONFIG_MAPPING[model_type]
    needed = dict(_NEEDED.get(model_type, {}))
    default = config_class(**{k: v for k, v in needed.items() if k == "text_config"})
    changes = _changes(default)
    for name, value in {**needed, **more}.items():
        is_part = isinstance(value, Mapping) and isinstance(changes.get(name), Mapping)
        changes[name] = {**changes[name], **value} if is_part else value
    if model_type in _ROPE_BY_KIND:
        changes["rope_parameters"] = _ROPE_BY_KIND[model_type]
    return config_class(**changes)


def _has_one_text(config: Any) -> bool:
    try:
        config.get_text_config()
    except ValueError:
        return False
    return True


def _switched_on(config: Any) -> dict[str, Any]:
    fields = config.to_dict()
    on = {name: value for name, value in _ON.items() if name in fields and not fields[name]}
    kinds = fields.get("layer_types")
    if "sliding_window" in on and kinds and set(kinds) == {"full_attention"}:
        on["layer_types"] = ["sliding_attention", "full_attention"] * (LAYERS // 2)
    return on


def _changes(config: Any) -> dict[str, Any]:
    fields: Mapping[str, Any] = config.to_dict()
    parts = {name for name in getattr(config, "sub_configs", {}) if getattr(config, name, None)}
    changes: dict[str, Any] = {}
    for name, value in fields.items():
        if name in parts:
            changes[name] = _changes(getattr(config, name))
        elif name in _KINDS and isinstance(value, list):
            changes[name] = _all_kinds(value)
        elif isinstance(value, list) and len(value) > LAYERS and _is_per_layer(fields, value):
            changes[name] = [_small(name, each) or each for each in value[-LAYERS:]]
        elif (small := _small(name, value)) is not None:
            changes[name] = small
    if fields.get("num_key_value_heads", 0) == fields.get("num_attention_heads"):
        changes["num_key_value_heads"] = _HEADS
    if "initializer_range" in fields:
        changes["initializer_range"] = 0.3
    ends = {"bos_token_id": 1, "pad_token_id": 0, "eos_token_id": 0}
    return changes | {n: i for n, i in ends.items() if fields.get(n) is not None}


def _all_kinds(kinds: list[str]) -> list[str]:
    """Return one kind for each small layer so that all kinds occur; the first ones first."""
    different = list(dict.fromkeys(kinds))[:LAYERS]
    rest = different * LAYERS
    return sorted((different + rest)[:LAYERS], key=different.index)


def _is_per_layer(fields: Mapping[str, Any], value: list[Any]) -> bool:
    return len(value) == fields.get("num_hidden_layers")


def _small(name: str, value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        return None
    if name.endswith("token_id"):
        return 0 if value >= VOCAB else None
    return next((size for pattern, size in _SIZES if re.fullmatch(pattern, name)), None)
