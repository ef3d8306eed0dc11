"""Describes how the memory is divided between models, steps, graphs and the KV pool."""

from collections.abc import Mapping
from dataclasses import dataclass

GIB = 1024**3
_MIB = 1024**2


def size_text(num_bytes: float) -> str:
    """Format a size: "1.00 GiB", and "59.4 MiB" below a tenth of that."""
    if num_bytes >= GIB / 10:
        return f"{num_bytes / GIB:.2f} GiB"
    return f"{num_bytes / _MIB:.3g} MiB"


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Lists the bytes of every part; printed at start and shown by /server_info."""

    num_pages: int
    page_size: int
    bytes_per_page: int
    target_bytes: int
    draft_bytes: int
    step_bytes: int  # peak of the largest step, measured on CUDA; 0 on a CPU
    graph_bytes: int  # kept by captured passes; 0 without graphs
    budget: str  # the setting that limits the pool, with its value

    @property
    def pool_bytes(self) -> int:
        return self.num_pages * self.bytes_per_page

    @property
    def num_tokens(self) -> int:
        return self.num_pages * self.page_size

    def describe(self) -> Mapping[str, object]:
        """The fields of /server_info, sizes in GiB."""
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
