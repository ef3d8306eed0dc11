"""Paged KV memory: page allocation, prefix cache, KV storage and attention over pages.

This package works on integers and tensors only. It imports no model, request or setting.
"""

from kv_pool.allocator import OutOfPages, PageAllocator
from kv_pool.attention import (
    AttentionBackend,
    AttentionOptions,
    AttentionPlan,
    FixedBackend,
    FixedPlan,
    NoFixedPlan,
    ReferenceAttention,
    sequence_slots,
)
from kv_pool.page_manager import PageManager
from kv_pool.page_table import PageTable
from kv_pool.storage import KVLayout, KVPool, KVShape

__all__ = [
    "AttentionBackend",
    "AttentionOptions",
    "AttentionPlan",
    "FixedBackend",
    "FixedPlan",
    "KVLayout",
    "KVPool",
    "KVShape",
    "NoFixedPlan",
    "OutOfPages",
    "PageAllocator",
    "PageManager",
    "PageTable",
    "ReferenceAttention",
    "sequence_slots",
]
