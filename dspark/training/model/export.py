"""Exports a trained network as a checkpoint folder in DeepSpec format."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from jaxtyping import Int
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from draft.atomic_write import whole_file, write_text
from draft.config import DecoderVariant, DSparkConfig, gemma4_variant
from draft.network.network import DSparkNetwork

_SHARED = ("embed_tokens.weight", "lm_head.weight")  # those of the target, aliased at load


def export_draft(
    network: DSparkNetwork, folder: Path, *, more: Mapping[str, object], num_target_layers: int
) -> None:
    """Write model.safetensors in bfloat16, without embedding and head, and config.json.

    `more` are additional fields of config.json. Raises OSError and then keeps the old files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in network.state_dict().items()
        if name not in _SHARED
    }
    if network.vocabulary is not None:
        tensors |= _vocabulary_maps(network.vocabulary.target_ids, network.config.vocab_size)
    config = native_config(network.config, num_target_layers=num_target_layers)
    try:
        with whole_file(folder / "model.safetensors") as partial:
            save_file(tensors, partial, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(f"{folder / 'model.safetensors'} cannot be written: {error}") from error
    write_text(folder / "config.json", json.dumps({**config, **more}, indent=2, sort_keys=True))


def _vocabulary_maps(target_ids: Int[Tensor, "Vd"], vocab_size: int) -> dict[str, Tensor]:
    """Return d2t, offsets from draft to target ids, and t2d, a mask of the target's vocabulary."""
    kept_ids = target_ids.to("cpu")
    mask = torch.zeros(vocab_size, dtype=torch.bool)
    mask[kept_ids] = True
    return {"d2t": kept_ids - torch.arange(len(kept_ids)), "t2d": mask}


def native_config(config: DSparkConfig, *, num_target_layers: int) -> dict[str, object]:
    """Return config.json of a draft with full attention in all layers."""
    assert len(set(config.layers)) == 1, f"layers differ: {config.layers}"
    assert config.layers[0].sliding_window is None, "sliding windows"
    is_qwen3 = config.variant == DecoderVariant()
    own = _qwen3_decoder(config) if is_qwen3 else _gemma4_decoder(config)
    if config.draft_vocab_size is not None:
        own["draft_vocab_size"] = config.draft_vocab_size
    return own | {
        "attention_bias": config.attention_bias,
        "block_size": config.block_size,
        "confidence_head_with_markov": config.confidence_with_markov,
        "dtype": "bfloat16",
        "enable_confidence_head": config.has_confidence_head,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "layer_types": ["full_attention"] * config.num_layers,
        "markov_head_type": config.markov_kind or "vanilla",
        "markov_rank": config.markov_rank,
        "mask_token_id": config.mask_token_id,
        "num_attention_heads": config.num_heads,
        "num_hidden_layers": config.num_layers,
        "num_target_layers": num_target_layers,
        "rms_norm_eps": config.rms_norm_eps,
        "sliding_window": None,
        "target_layer_ids": list(config.tap_layers),
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "vocab_size": config.vocab_size,
    }


def _qwen3_decoder(config: DSparkConfig) -> dict[str, object]:
    return {
        "architectures": ["Qwen3DSparkModel"],
        "model_type": "qwen3",
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "num_key_value_heads": config.num_kv_heads,
        "rope_parameters": {"rope_theta": config.layers[0].rope_theta, "rope_type": "default"},
    }


def _gemma4_decoder(config: DSparkConfig) -> dict[str, object]:
    variant, layer = config.variant, config.layers[0]
    expected = gemma4_variant(shares_kv=variant.shares_kv, logit_cap=variant.logit_cap)
    assert variant == expected, f"no architecture has this decoder: {variant}"
    kv_heads = "num_global_key_value_heads" if variant.shares_kv else "num_key_value_heads"
    rope = {
        "partial_rotary_factor": layer.rotary_fraction,
        "rope_theta": layer.rope_theta,
        "rope_type": "proportional",
    }
    return {
        "architectures": ["Gemma4DSparkModel"],
        "model_type": "gemma4_text",
        "attention_k_eq_v": variant.shares_kv,
        "final_logit_softcapping": variant.logit_cap,
        "global_head_dim": config.head_dim,
        "hidden_activation": "gelu_pytorch_tanh",
        kv_heads: config.num_kv_heads,
        "rope_parameters": {"full_attention": rope},
    }
