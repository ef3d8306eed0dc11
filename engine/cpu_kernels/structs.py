"""Mirrors the structs of decoder_structs.h field by field. Every member takes 8 bytes."""

import ctypes

ROW_BLOCK = 96  # of linear.h: rows of x that are rounded at a time


def counts(names: str) -> list[tuple[str, type]]:
    """Make an int64 field of each name."""
    return [(name, ctypes.c_int64) for name in names.split()]


def reals(names: str) -> list[tuple[str, type]]:
    """Make a double field of each name."""
    return [(name, ctypes.c_double) for name in names.split()]


def pointers(names: str) -> list[tuple[str, type]]:
    """Make a pointer field of each name."""
    return [(name, ctypes.c_void_p) for name in names.split()]


class LayerStruct(ctypes.Structure):
    """Describes one decoder layer: weights (null: none) and its part of the pool."""

    _fields_ = (
        pointers("input_norm q q_scale q_bias k k_scale k_bias v v_scale v_bias")
        + pointers("q_norm k_norm o o_scale o_bias attended_norm inner_norm fed_norm")
        + pointers("gate gate_scale up up_scale down down_scale keys values")
        + counts("window rotation norms_rows")
    )


class DecoderStruct(ctypes.Structure):
    """Describes a model: sizes, and the addresses of its parts."""

    _fields_ = (
        counts("num_layers hidden num_heads num_kv_heads head_dim inner vocab num_taps")
        + counts("rotary_dim gate")
        + reals("eps scale")
        + pointers("layers final_norm lm_head lm_head_scale tap_layers")
    )


class PassStruct(ctypes.Structure):
    """Describes one pass: inputs, scratch and results."""

    _fields_ = (
        counts("num_rows num_sequences num_logit_rows num_threads num_states page_size")
        + pointers("x cosine sine slots row_starts kv_lens page_tables")
        + pointers("logit_rows h q k v attended inner branch rounded")
        + counts("rounded_stride")
        + pointers("states turn taps logits")
    )
