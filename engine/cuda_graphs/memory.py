"""Computes the memory of captured graphs, in bytes."""

from dataclasses import dataclass

from engine.cuda_graphs.capture_sizes import CaptureSizes

_FLOAT32 = 4


@dataclass(frozen=True, slots=True)
class GraphSizes:
    """The sizes of captured passes and of their outputs."""

    capture_sizes: CaptureSizes
    width: int  # rows of a full verify window
    vocab_size: int
    aux_size: int  # tapped hidden states of a row, side by side
    block_size: int  # 0 without a draft
    itemsize: int  # bytes of an activation

    @property
    def output_bytes(self) -> int:
        """Bytes of every size's logits, taps and, where rows are sampled, draft distributions."""
        row = (self.vocab_size + self.aux_size) * self.itemsize
        drawn = self.block_size * self.vocab_size * _FLOAT32
        rows = self.width if self.width == 1 else self.width + 1  # with a capture of single rows
        return sum(self.capture_sizes.sizes) * (rows * row + drawn)

    @property
    def num_graphs(self) -> int:
        """Graphs that attend over pages: per size the target's, over full windows and single rows,
        and the draft's, greedy and sampled."""
        return len(self.capture_sizes.sizes) * (1 if self.block_size == 0 else 4)
