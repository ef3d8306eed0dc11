"""Runs draft rounds in one kernel call, over the network's parameters and the pool."""

import ctypes
import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from draft import BlockPass, BlockRequest, DSparkConfig, DSparkNetwork
from engine.cpu_kernels.compiling import CpuKernelsUnavailable, KernelLibrary
from engine.cpu_kernels.draft_binding import CHAIN_COLUMNS, bind
from engine.cpu_kernels.draft_structs import ChainPassStruct, RoundStruct
from engine.cpu_kernels.page_tables import PageTablePointers
from engine.cpu_kernels.structs import ROW_BLOCK
from kv_pool import KVPool

logger = logging.getLogger(__name__)

_BEST_BYTES = 16  # struct Best
_MAX_SEQUENCES = 64  # MAX_CHAIN_SEQUENCES


class CpuDraftRound:
    """A BlockKernel that takes whole blocks, of up to max_rows slots at a time.

    Where the CPU multiplies pairs of bfloat16, rows are rounded to it before products with
    bfloat16 matrices.
    """

    def __init__(
        self,
        *,
        kernels: KernelLibrary,
        network: DSparkNetwork,
        pool: KVPool,
        max_rows: int,
        num_threads: int,
    ) -> None:
        """Bind the network and its part of the pool.

        Raises CpuKernelsUnavailable with the reason when the kernels do not support the network.
        """
        self._kernels = kernels
        self._network = network
        self._pool = pool
        self._num_threads = num_threads
        self._max_sequences = max(1, min(max_rows // network.config.num_slots, _MAX_SEQUENCES))
        self._binding = bind(network, pool, kernels)
        self._reason: str | None = None
        self._scratch = _scratch(network.config, self._max_sequences, num_threads)
        self._outputs = _outputs(network.config, self._max_sequences)

    @property
    def reason(self) -> str | None:
        return self._reason

    @property
    def chain_reason(self) -> str | None:
        """Why PyTorch picks the tokens; None where the kernel does."""
        return self._binding.chain_reason

    def run(self, request: BlockRequest) -> BlockPass | None:
        """See draft.BlockKernel. Raises IndexError for an id, slot or position out of range."""
        if not self._is_bound():
            return None
        count, size = len(request.context_lens), self._max_sequences
        if count <= size:
            return self._run(request)
        config = self._network.config
        hidden = torch.empty(count, config.num_slots, config.hidden_size)
        logits = torch.empty(count, config.block_size, config.num_outputs)
        pieces = []
        for rows in (slice(first, first + size) for first in range(0, count, size)):
            pieces.append(self._run(_part(request, rows)))
            # Copied, for the next part overwrites the buffers.
            hidden[rows], logits[rows] = pieces[-1].hidden, pieces[-1].base_logits
        return BlockPass(
            hidden=hidden,
            base_logits=logits,
            draft_ids=_joined([piece.draft_ids for piece in pieces]),
            confidence_logits=_joined([piece.confidence_logits for piece in pieces]),
        )

    def _run(self, request: BlockRequest) -> BlockPass:
        num_sequences = len(request.context_lens)
        picks = request.sampling is None and self.chain_reason is None
        draft_ids, confidence = self._results(num_sequences) if picks else (None, None)
        if not self._call(request, draft_ids, confidence):
            self._binding = bind(self._network, self._pool, self._kernels)
            self._call(request, draft_ids, confidence)
        config, hidden, logits = self._network.config, *self._outputs
        num_slots, block_size = config.num_slots, config.block_size
        return BlockPass(
            hidden=hidden[: num_sequences * num_slots].view(num_sequences, num_slots, -1),
            base_logits=logits[: num_sequences * block_size].view(num_sequences, block_size, -1),
            draft_ids=draft_ids,
            confidence_logits=confidence,
        )

    def _results(self, num_sequences: int) -> tuple[Tensor, Tensor | None]:
        """Allocate results, new at every call: the block returns them."""
        config = self._network.config
        shape = num_sequences, config.block_size
        confidence = torch.empty(shape) if config.has_confidence_head else None
        return torch.empty(shape, dtype=torch.long), confidence

    def _call(
        self, request: BlockRequest, draft_ids: Tensor | None, confidence: Tensor | None
    ) -> bool:
        """Call the kernel; False when tokens may be wrong, because W2 was changed in place."""
        num_slots, scratch = self._network.config.num_slots, self._scratch
        context_lens, page_size = (
            np.array(request.context_lens, dtype=np.int64),
            self._pool.page_size,
        )
        tables = PageTablePointers(
            request.page_tables, context_lens + num_slots, page_size=page_size
        )
        anchor_ids = request.anchor_ids.long().contiguous()
        slots = request.slots.long().contiguous()
        assert slots.shape == (len(context_lens), num_slots), slots.shape
        is_stale = ctypes.c_int64(0)
        call = RoundStruct(
            num_sequences=len(context_lens),
            num_threads=self._num_threads,
            page_size=page_size,
            anchor_ids=anchor_ids.data_ptr(),
            context_lens=context_lens.ctypes.data,
            slots=slots.data_ptr(),
            page_tables=tables.address,
            chain=ChainPassStruct(
                logits=self._outputs[1].data_ptr(),
                draft_ids=None if draft_ids is None else draft_ids.data_ptr(),
                confidence=None if confidence is None else confidence.data_ptr(),
                tops=scratch["tops"].data_ptr(),
                found=scratch["found"].data_ptr(),
                is_stale=ctypes.addressof(is_stale),
            ),
            hidden=self._outputs[0].data_ptr(),
            rounded_stride=scratch["rounded"].stride(0),
            **{name: scratch[name].data_ptr() for name in _LAYER_SCRATCH},
        )
        draft = ctypes.addressof(self._binding.draft)
        if not self._binding.run(draft, ctypes.addressof(call)):
            raise IndexError(f"an id, slot, page or position is out of range: {request}")
        return is_stale.value == 0

    def _is_bound(self) -> bool:
        """Whether the structs match the network; a changed network is bound again."""
        if self._reason is None and self._binding.snapshot.is_current:
            return True
        reason: str | None = None
        try:
            self._binding = bind(self._network, self._pool, self._kernels)
        except CpuKernelsUnavailable as error:
            reason = str(error)
            if reason != self._reason:
                logger.info("drafts are computed by PyTorch: %s", reason)
        self._reason = reason
        return reason is None


def _part(request: BlockRequest, rows: slice) -> BlockRequest:
    """Select some blocks. Of the sampling the kernel reads only whether there is any."""
    return replace(
        request,
        anchor_ids=request.anchor_ids[rows],
        anchor_positions=request.anchor_positions[rows],
        slots=request.slots[rows],
        page_tables=request.page_tables[rows],
        context_lens=request.context_lens[rows],
    )


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    found = [part for part in parts if part is not None]
    return torch.cat(found) if found else None


_LAYER_SCRATCH = ("x", "h", "q", "queries", "k", "v", "attended", "inner", "rounded")


def _scratch(config: DSparkConfig, sequences: int, num_threads: int) -> dict[str, Tensor]:
    rows, size = sequences * config.num_slots, config.hidden_size
    heads, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    widths = {"x": size, "h": size, "q": heads, "queries": heads, "k": kv, "v": kv}
    widths |= {"attended": heads, "inner": 2 * config.intermediate_size}
    return {
        **{name: torch.empty(rows, width) for name, width in widths.items()},
        "rounded": torch.empty(
            num_threads,
            min(rows, ROW_BLOCK) * max(size, heads, config.intermediate_size),
            dtype=torch.bfloat16,
        ),
        "tops": torch.empty(-(-config.num_outputs // CHAIN_COLUMNS)),
        "found": torch.empty(2 * num_threads * sequences * _BEST_BYTES, dtype=torch.uint8),
    }


def _outputs(config: DSparkConfig, sequences: int) -> tuple[Tensor, Tensor]:
    """Allocate hidden states of every slot and base logits of the predicting ones."""
    hidden = torch.empty(sequences * config.num_slots, config.hidden_size)
    return hidden, torch.empty(sequences * config.block_size, config.num_outputs)
