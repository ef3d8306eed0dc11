"""The structs of draft_chain.h, draft_round.h and draft_context.h. Every member takes 8 bytes."""

import ctypes


def counts(names: str) -> list[tuple[str, type]]:
    return [(name, ctypes.c_int64) for name in names.split()]


def reals(names: str) -> list[tuple[str, type]]:
    return [(name, ctypes.c_double) for name in names.split()]


def pointers(names: str) -> list[tuple[str, type]]:
    return [(name, ctypes.c_void_p) for name in names.split()]


class DraftLayerStruct(ctypes.Structure):
    """One draft layer: weights and its part of the pool."""

    _fields_ = pointers("input_norm q k v q_norm k_norm o post_norm gate up down") + pointers(
        "rotary keys values"
    )


class ChainStruct(ctypes.Structure):
    """What picks tokens: Markov tables (null without), vocabulary, confidence head."""

    _fields_ = (
        counts("num_outputs block_size rank")
        + pointers("w1 w2 longest target_ids confidence confidence_bias")
        + counts("hidden confidence_rank")
    )


class DraftStruct(ctypes.Structure):
    """A draft: sizes, and where its parts are."""

    _fields_ = [
        *counts("num_layers hidden num_heads num_kv_heads head_dim inner"),
        *counts("num_slots first_slot mask_id num_tokens num_pool_slots num_positions"),
        *reals("eps"),
        *pointers("layers embedding narrow_embedding final_norm lm_head"),
        ("chain", ChainStruct),
    ]


class ChainPassStruct(ctypes.Structure):
    """One chain's results and scratch."""

    _fields_ = pointers("logits draft_ids confidence tops found is_stale")


class RoundStruct(ctypes.Structure):
    """One draft pass: what goes in, scratch, and where results go."""

    _fields_ = [
        *counts("num_sequences num_threads num_kv_slots"),
        *pointers("anchor_ids context_lens slots kv_slots kv_starts"),
        *pointers("x h q queries k v attended inner rounded"),
        *counts("rounded_stride"),
        *pointers("hidden"),
        ("chain", ChainPassStruct),
    ]


class ContextWriteStruct(ctypes.Structure):
    """One context write, all in one."""

    _fields_ = (
        counts("num_rows num_threads aux_size hidden num_layers num_kv_heads head_dim")
        + counts("num_slots num_positions")
        + reals("norm_eps key_eps")
        + pointers("taps fc norm weight bias key_norm rotary positions slots")
        + pointers("context stacked keys values")
    )
