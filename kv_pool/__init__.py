
Knows integers and tensors; never a request, a model or a setting.
"""

from kv_pool.page_table import PageTable
from kv_pool.pool import KVPool, KVShape

__all__ = [
    "KVPool",
    "KVShape",
    "PageTable",
]
