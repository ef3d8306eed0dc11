"""Attention over paged KV: one interface; reference, Triton and FlashInfer backends."""

from kv_pool.attention.backend import AttentionBackend, AttentionOptions, AttentionPlan
from kv_pool.attention.fixed import FixedBackend, FixedPlan, NoFixedPlan
from kv_pool.attention.layout import sequence_slots
from kv_pool.attention.reference import ReferenceAttention

__all__ = [
    "AttentionBackend",
    "AttentionOptions",
    "AttentionPlan",
    "FixedBackend",
    "FixedPlan",
    "NoFixedPlan",
    "ReferenceAttention",
    "sequence_slots",
]
