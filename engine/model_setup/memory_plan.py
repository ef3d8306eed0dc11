"""How large the KV pool is, and what takes how much. Arithmetic only, in bytes."""

from collections.abc import Mapping
from dataclasses import dataclass

from engine.errors import LoadError

GIB = 1024**3
_MIB = 1024**2


def size_text(num_bytes: float) -> str:
    """A size for people: "1.00 GiB", and "59.4 MiB" where that would be none or next to none."""
    if num_bytes >= GIB / 10:
        return f"{num_bytes / GIB:.2f} GiB"
    return f"{num_bytes / _MIB:.3g} MiB"


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Where the memory goes; printed at start and shown by /server_info."""

    num_pages: int
    page_size: int
    bytes_per_page: int
    target_bytes: int
    draft_bytes: int
    step_bytes: int  # peak of the largest step, measured on CUDA; 0 where not measured
    graph_bytes: int  # what recorded passes keep; 0 without graphs
    budget: str  # the setting that decided

    @property
    def pool_bytes(self) -> int:
        return self.num_pages * self.bytes_per_page

    @property
    def num_tokens(self) -> int:
        return self.num_pages * self.page_size

    def describe(self) -> Mapping[str, object]:
        return {
            "num_pages": self.num_pages,
            "page_size": self.page_size,
            "tokens": self.num_tokens,
            "pool_gib": round(self.pool_bytes / GIB, 6),
            "target_gib": round(self.target_bytes / GIB, 6),
            "draft_gib": round(self.draft_bytes / GIB, 6),
            "step_gib": round(self.step_bytes / GIB, 6),
            "graphs_gib": round(self.graph_bytes / GIB, 6),
            "budget": self.budget,
        }


def pages_for_budget(
    *, budget_bytes: int, bytes_per_page: int, page_size: int, min_tokens: int, budget: str
) -> int:
    """Pages that fit into the budget. Raises LoadError when fewer than min_tokens would fit."""
    num_pages = max(budget_bytes, 0) // bytes_per_page
    require_tokens(num_pages * page_size, min_tokens=min_tokens, budget=budget)
    return num_pages


def require_tokens(num_tokens: int, *, min_tokens: int, budget: str) -> None:
    """Raises LoadError when the pool could not hold even a short request with its draft."""
    if num_tokens < min_tokens:
        raise LoadError(
            f"{budget} leaves room for {num_tokens} tokens of KV memory; at least {min_tokens} "
            "are needed for one short request and its draft block"
        )


def cuda_budget(
    *, total_bytes: int, fraction: float, used_bytes: int, step_bytes: int, graph_bytes: int
) -> int:
    """What `memory_fraction` of a device leaves for pages after all else.

    That is the weights, the largest step, and what recorded passes keep.
    """
    return int(total_bytes * fraction) - used_bytes - step_bytes - graph_bytes
