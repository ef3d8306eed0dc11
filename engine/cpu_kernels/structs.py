"""The structs of decoder_structs.h, field by field. Every member takes 8 bytes."""

import ctypes

ROW_BLOCK = 96  # of linear.h: rows of x that are rounded at a time

_Fields = list[tuple[str, type]]


def _fields(kind: type, names: str) -> _Fields:
    return [(name, kind) for name in names.split()]


_pointers = ctypes.c_void_p
_counts = ctypes.c_int64
_reals = ctypes.c_double


class LayerStruct(ctypes.Structure):
    """One decoder layer: weights (null where there is none) and its part of the pool."""

    _fields_ = (
        _fields(_pointers, "input_norm q q_scale q_bias k k_scale k_bias v v_scale v_bias")
        + _fields(_pointers, "q_norm k_norm o o_scale o_bias post_norm")
        + _fields(_pointers, "gate gate_scale up up_scale down down_scale keys values")
        + _fields(_counts, "window")
    )


class DecoderStruct(ctypes.Structure):
    """A model: sizes, and where its parts are."""

    _fields_ = (
        _fields(_counts, "num_layers hidden num_heads num_kv_heads head_dim inner vocab num_taps")
        + _fields(_reals, "eps scale")
        + _fields(_pointers, "layers final_norm lm_head lm_head_scale tap_layers")
    )


class PassStruct(ctypes.Structure):
    """One step: what goes in, scratch, and where results go."""

    _fields_ = (
        _fields(_counts, "num_rows num_sequences num_logit_rows num_threads num_states")
        + _fields(_pointers, "x cosine sine slots row_starts kv_lens kv_slots kv_starts")
        + _fields(_pointers, "logit_rows h q k v attended inner rounded")
        + _fields(_counts, "rounded_stride")
        + _fields(_pointers, "states turn taps logits")
    )
