"""Reads the decoder of each architecture: its heads and layers, and how it differs from Qwen3's."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from draft.checkpoint.backbone_fields import Heads, read_heads, read_layers
from draft.checkpoint.fields import Fields
from draft.config import DecoderVariant, LayerConfig, gemma4_variant
from draft.errors import DraftLoadError

# Parts of Gemma 4 that a draft does not have: the value that switches each off.
_ABSENT: Mapping[str, object] = {
    "enable_moe_block": False,
    "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 0,
    "use_double_wide_mlp": False,
}


@dataclass(frozen=True, slots=True)
class Decoder:
    """Holds what the reader of one architecture finds in a config."""

    heads: Heads
    layers: tuple[LayerConfig, ...]
    variant: DecoderVariant


def read_qwen3(fields: Fields, *, causal_windows: bool = False) -> Decoder:
    """Read a Qwen3 decoder. causal_windows: see read_layers."""
    fields.choice("hidden_act", ["silu"], default="silu")
    layers = read_layers(fields, causal_windows=causal_windows)
    return Decoder(read_heads(fields), layers, DecoderVariant())


def read_gemma4(fields: Fields) -> Decoder:
    """Read a Gemma 4 decoder whose layers all have full attention.

    Its heads are those of Gemma 4's global layers. With attention_k_eq_v there is no v_proj.
    """
    fields.choice("hidden_activation", ["gelu_pytorch_tanh"])
    for name, off in _ABSENT.items():
        found = fields.find(name)
        if found not in (None, off):
            raise DraftLoadError(fields.label(name), found=found, accepted=str(off).lower())
    shares_kv = fields.flag("attention_k_eq_v", default=False)
    kv_heads = "num_global_key_value_heads" if shares_kv else "num_key_value_heads"
    capped = fields.find("final_logit_softcapping") is not None
    variant = gemma4_variant(
        shares_kv=shares_kv,
        logit_cap=fields.positive_number("final_logit_softcapping") if capped else None,
    )
    return Decoder(
        read_heads(fields, kv_heads=kv_heads, head_dim="global_head_dim"),
        read_layers(fields, kinds=["full_attention"], partial_rope=True),
        variant,
    )


# By the name in `architectures`.
DECODERS: Mapping[str, Callable[[Fields], Decoder]] = {
    "Qwen3DSparkModel": read_qwen3,
    "Gemma4DSparkModel": read_gemma4,
}
