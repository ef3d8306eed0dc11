"""What recordings keep for themselves. Arithmetic only, in bytes."""

from dataclasses import dataclass

from engine.cuda_graphs.capture_sizes import CaptureSizes

_FLOAT32 = 4


@dataclass(frozen=True, slots=True)
class GraphSizes:
    """The widths of what the recorded passes leave behind."""

    capture_sizes: CaptureSizes
    width: int  # rows of a full verify window
    vocab_size: int
    aux_size: int  # tapped hidden states of a row, side by side
    block_size: int  # 0 without a draft
    itemsize: int  # bytes of an activation

    @property
    def output_bytes(self) -> int:
        """Every tier keeps its own logits, taps and, where rows draw, draft distributions."""
        row = (self.vocab_size + self.aux_size) * self.itemsize
        drawn = self.block_size * self.vocab_size * _FLOAT32
        rows = self.width if self.width == 1 else self.width + 1  # single rows have their own
        return sum(self.capture_sizes.sizes) * (rows * row + drawn)

    @property
    def num_graphs(self) -> int:
        """Of passes over pages, for each tier: the target's, over full windows and single rows, and
        the draft's, greedy and drawn."""
        return len(self.capture_sizes.sizes) * (1 if self.block_size == 0 else 4)
