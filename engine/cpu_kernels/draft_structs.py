"""Mirrors the structs of draft_chain.h, draft_round.h and draft_context.h, 8 bytes a member."""

import ctypes

from engine.cpu_kernels.structs import counts, pointers, reals


class DraftLayerStruct(ctypes.Structure):
    """Describes one draft layer: weights and its part of the pool."""

    _fields_ = pointers(
        "input_norm q q_scale k k_scale v v_scale q_norm k_norm o o_scale post_norm"
    ) + pointers("gate gate_scale up up_scale down down_scale rotary keys values")


class ChainStruct(ctypes.Structure):
    """Describes what picks tokens: Markov tables (null: none), vocabulary, confidence head."""

    _fields_ = (
        counts("num_outputs block_size rank")
        + pointers("w1 w2 w2_scale longest target_ids confidence confidence_bias")
        + counts("hidden confidence_rank")
    )


class DraftStruct(ctypes.Structure):
    """Describes a draft: sizes, and the addresses of its parts."""

    _fields_ = [
        *counts("num_layers hidden num_heads num_kv_heads head_dim inner"),
        *counts("num_slots first_slot mask_id num_tokens num_pool_slots num_positions"),
        *reals("eps"),
        *pointers("layers embedding narrow_embedding final_norm lm_head lm_head_scale"),
        ("chain", ChainStruct),
    ]


class ChainPassStruct(ctypes.Structure):
    """Describes one chain's results and scratch."""

    _fields_ = pointers("logits draft_ids confidence tops found is_stale")


class RoundStruct(ctypes.Structure):
    """Describes one draft pass: inputs, scratch and results."""

    _fields_ = [
        *counts("num_sequences num_threads page_size"),
        *pointers("anchor_ids context_lens slots page_tables"),
        *pointers("x h q queries k v attended inner rounded"),
        *counts("rounded_stride"),
        *pointers("hidden"),
        ("chain", ChainPassStruct),
    ]


class ContextWriteStruct(ctypes.Structure):
    """Describes one context write: sizes, weights, inputs, scratch and the pool."""

    _fields_ = (
        counts("num_rows num_threads aux_size hidden num_layers num_kv_heads head_dim")
        + counts("num_slots num_positions")
        + reals("norm_eps key_eps")
        + pointers("taps fc fc_scale norm weight weight_scale bias key_norm rotary positions slots")
        + pointers("context stacked keys values")
    )
