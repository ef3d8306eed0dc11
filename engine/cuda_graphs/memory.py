"""Computes the memory of captured graphs, in bytes."""

from dataclasses import dataclass

from engine.cuda_graphs.capture_sizes import CaptureSizes

_FLOAT32 = 4


@dataclass(frozen=True, slots=True)
class GraphSizes:
    """The sizes of captured passes and of their outputs."""

    capture_sizes: CaptureSizes
    widths: tuple[int, ...]  # rows of verify windows
    vocab_size: int
    aux_size: int  # tapped hidden states of a row, side by side
    block_size: int  # 0 without a draft
    itemsize: int  # bytes of an activation

    @property
    def output_bytes(self) -> int:
        """Bytes of logits, taps and draft distributions, which all sizes share."""
        row = (self.vocab_size + self.aux_size) * self.itemsize
        drawn = self.block_size * self.vocab_size * _FLOAT32
        return self.capture_sizes.sizes[-1] * (self.widths[-1] * row + drawn)

    @property
    def num_graphs(self) -> int:
        """Graphs that attend over pages: per size the target's, over windows of every width, and
        the draft's, greedy and sampled."""
        per_size = len(self.widths) + (2 if self.block_size else 0)
        return len(self.capture_sizes.sizes) * per_size
