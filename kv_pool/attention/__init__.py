"""Attention over paged keys and values: one signature, several backends."""

from kv_pool.attention.backend import AttentionBackend, AttentionPlan
from kv_pool.attention.fixed import FixedBackend, FixedPlan, NoFixedPlan
from kv_pool.attention.layout import sequence_slots
from kv_pool.attention.reference import ReferenceAttention

__all__ = [
    "AttentionBackend",
    "AttentionPlan",
    "FixedBackend",
    "FixedPlan",
    "NoFixedPlan",
    "ReferenceAttention",
    "sequence_slots",
]
