"""Refuses architectures that pages of keys and values cannot serve, with the reason."""

import re
from collections.abc import Mapping
from typing import Any

from engine.errors import LoadError

SERVED_LAYERS = frozenset({"full_attention", "sliding_attention"})
_STATE = "their state is not a list of keys and values, so drafts cannot be taken back"
_INDEX = "an index selects the tokens that they attend to"
_REASONS: Mapping[str, str] = {
    "linear_attention": _STATE,
    "mamba": _STATE,
    "mamba2": _STATE,
    "recurrent": _STATE,
    "conv": _STATE,
    "hybrid": _STATE,
    "hybrid_sliding": _STATE,
    "chunked_attention": "they attend within chunks of the text",
    "indexed_attention": _INDEX,
    "compressed_sparse_attention": "they attend to compressed tokens",
    "heavily_compressed_attention": "they attend to compressed tokens",
}
INTERFACE_UNUSED = (
    "its layers do not call transformers' attention interface, so they cannot attend over pages"
)
# Fields of a config that restrict or change attention.
_ATTENTION_FIELD = re.compile(
    "window|chunk|layer_types|sink|softcap|alibi|^index_|sparse_attention"
)
# Those that are followed, and those that are not about attention.
_FOLLOWED = frozenset(
    {
        "layer_types",
        "sliding_window",
        "use_sliding_window",
        "max_window_layers",
        "sliding_window_pattern",
        "_sliding_window_pattern",
        "prefix_dense_sliding_window_pattern",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "moe_router_logit_softcapping",
        "mlp_gate_softcap",
        "mlp_up_softcap",
        "shared_expert_sink",
        "mlp_layer_types",
        "mtp_layer_types",
        "mtp_mlp_layer_types",
        "chunk_size_feed_forward",
    }
)


def text_config_of(config: Any) -> Any:
    """Return the config of a model's decoder. Raises LoadError for a model with several."""
    try:
        return config.get_text_config()
    except ValueError as error:
        raise LoadError(
            f"model type {config.model_type!r} consists of several text models; accepted: decoders"
        ) from error


def refuse_unservable(config: Any) -> None:
    """Raise LoadError for an architecture whose state is not the keys and values of past tokens."""
    kinds = sorted(set(getattr(config, "layer_types", None) or []) - SERVED_LAYERS)
    if kinds:
        reason = _REASONS.get(kinds[0], "this kind of attention is not known")
        raise LoadError(
            f"model type {config.model_type!r} has layers of kind {kinds}: {reason}; accepted: "
            f"{', '.join(sorted(SERVED_LAYERS))}"
        )
    if getattr(config, "is_encoder_decoder", False):
        raise LoadError(
            f"model type {config.model_type!r} is an encoder-decoder; accepted: decoders"
        )


def refuse_unfollowed_fields(config: Any) -> None:
    """Raise LoadError for fields that restrict attention in a way that is not followed."""
    for name, value in config.to_dict().items():
        if _ATTENTION_FIELD.search(name) and name not in _FOLLOWED and value:
            raise LoadError(
                f"model type {config.model_type!r} restricts its attention by {name}={value!r}, "
                "which is not followed; accepted: sliding_window, layer_types, "
                "attn_logit_softcapping"
            )


def layer_windows(config: Any, num_layers: int) -> tuple[int | None, ...]:
    """Return the window that a config names for each layer; None: the whole past."""
    window: int | None = getattr(config, "sliding_window", None)
    if not window or getattr(config, "use_sliding_window", None) is False:
        return (None,) * num_layers
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * num_layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
