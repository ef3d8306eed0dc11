"""Captures the draft round, from anchor ids to draft ids and confidences, for each size."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draft import (
    BlockRequest,
    BlockSampling,
    ContextKVMode,
    ContextKVPath,
    DraftBlock,
    DSparkProposer,
)
from draft.proposer.masking import satisfies_mask
from engine.api import GREEDY_BELOW
from engine.cuda_graphs.capture import GraphCapturer, Recording
from engine.cuda_graphs.capture_sizes import CaptureSizes
from engine.cuda_graphs.pinned import PinnedAttention
from engine.cuda_graphs.scratch import ScratchPage
from engine.cuda_graphs.shared_outputs import SharedOutputs
from kv_pool import FixedBackend

# A greedy row in a sampling round is sampled at this temperature: the distribution is the argmax
# except for near ties.
_GREEDY_TEMPERATURE = GREEDY_BELOW


class GraphedProposer:
    """A Proposer whose rounds are replayed. Context is written eagerly.

    Each size has a greedy recording, and one in which every row is sampled.
    """

    def __init__(
        self,
        *,
        eager: DSparkProposer,
        attention: FixedBackend,
        capturer: GraphCapturer,
        capture_sizes: CaptureSizes,
        max_pages: int,
        scratch: ScratchPage,
        device: torch.device,
    ) -> None:
        """Capture every size. max_pages: of a sequence and a block.

        Raises NoFixedPlan when a layer's attention cannot be captured.
        """
        self._eager = eager
        self._capture_sizes = capture_sizes
        self._scratch = scratch
        self._follows_device_lens = attention.follows_device_lens
        self._rounds: dict[tuple[int, bool], _Round] = {}
        outputs = SharedOutputs()
        for size in reversed(
            capture_sizes.sizes
        ):  # the largest first: the others fit into its memory
            attending = PinnedAttention(
                attention,
                num_sequences=size,
                query_len=eager.num_slots,
                max_pages=max_pages,
            )
            attending.update(
                kv_lens=self._kv_lens([], size),
                page_tables=scratch.pad_tables([], eager.num_slots, size),
            )
            proposer = eager.with_attention(attending)
            for samples in (False, True):
                self._rounds[size, samples] = _capture(
                    proposer, attending, capturer, outputs, size, scratch.slot, samples, device
                )

    def propose(self, request: BlockRequest) -> DraftBlock:
        """See Proposer.propose. Distributions are valid until the next round."""
        count = len(request.context_lens)
        size = self._capture_sizes.holding(count)
        is_masked_sampling = request.mask is not None and request.sampling is not None
        if size is None or is_masked_sampling:  # q depends on the mask at each slot
            return self._eager.propose(request)
        this = self._rounds[size, request.sampling is not None]
        this.stage(request, self._scratch.slot)
        least = request.least_context_lens
        this.attention.update(
            kv_lens=self._kv_lens(request.context_lens, size),
            page_tables=self._scratch.pad_tables(request.page_tables, self.num_slots, size),
            least_kv_lens=None if least is None else self._kv_lens(least, size),
        )
        if least is not None:
            this.attention.set_kv_lens(request.anchor_positions + self.num_slots)
        this.recording.replay()
        found = this.recording.outputs
        block = DraftBlock(
            draft_ids=found.draft_ids[:count].clone(),
            draft_probs=_drawn(found, request),
            confidence_logits=None
            if found.confidence_logits is None
            else found.confidence_logits[:count].clone(),
        )
        if request.mask is None or satisfies_mask(
            request.mask, block.draft_ids, request.anchor_ids
        ):
            return block
        return self._eager.propose(request)  # the mask is filled on the host, slot by slot

    def can_draft_ahead(self, num_sequences: int) -> bool:
        """Return whether `propose` takes requests with least_context_lens of so many sequences."""
        return self._follows_device_lens and self._capture_sizes.holding(num_sequences) is not None

    def _kv_lens(self, context_lens: Sequence[int], size: int) -> list[int]:
        """Return the length of context and block; padding sequences have no context."""
        missing = [0] * (size - len(context_lens))
        return [length + self.num_slots for length in (*context_lens, *missing)]

    # -- delegated to the eager proposer ------------------------------------------------------

    @property
    def block_size(self) -> int:
        return self._eager.block_size

    @property
    def num_slots(self) -> int:
        return self._eager.num_slots

    @property
    def tap_layers(self) -> tuple[int, ...]:
        return self._eager.tap_layers

    @property
    def context_kv_path(self) -> ContextKVPath:
        return self._eager.context_kv_path

    @property
    def context_kv_reason(self) -> str | None:
        return self._eager.context_kv_reason

    def set_context_kv(self, mode: ContextKVMode) -> None:
        self._eager.set_context_kv(mode)

    def write_context(
        self,
        aux_hidden: Float[Tensor, "N A"],
        positions: Int[Tensor, " N"],
        slots: Int[Tensor, " N"],
    ) -> None:
        self._eager.write_context(aux_hidden, positions, slots)


@dataclass(frozen=True, slots=True)
class _Round:
    """One size: the request that its recording reads, and the recording."""

    request: BlockRequest
    attention: PinnedAttention
    recording: Recording[DraftBlock]

    def stage(self, request: BlockRequest, scratch_slot: int) -> None:
        """Copy a request to the first rows; the others are padding with the scratch slot."""
        mine, count = self.request, len(request.context_lens)
        mine.anchor_ids[:count] = request.anchor_ids
        mine.anchor_positions[:count] = request.anchor_positions
        mine.slots[:count] = request.slots
        mine.slots[count:] = scratch_slot
        # Anchors of the padding keep earlier values: valid ids and positions.
        if mine.sampling is not None and request.sampling is not None:
            theirs = request.sampling
            mine.sampling.temperatures.fill_(_GREEDY_TEMPERATURE)
            mine.sampling.temperatures[theirs.rows] = theirs.temperatures
            mine.sampling.uniforms.fill_(0.5)
            mine.sampling.uniforms[theirs.rows] = theirs.uniforms


def _drawn(found: DraftBlock, request: BlockRequest) -> Float[Tensor, "R K V"] | None:
    """Return the distributions of the rows that draw; all of them without a copy."""
    if found.draft_probs is None or request.sampling is None:
        return None
    rows = request.sampling.rows
    count = len(request.context_lens)
    return found.draft_probs[:count] if len(rows) == count else found.draft_probs[rows]


def _capture(
    proposer: DSparkProposer,
    attention: PinnedAttention,
    capturer: GraphCapturer,
    outputs: SharedOutputs,
    size: int,
    scratch_slot: int,
    samples: bool,
    device: torch.device,
) -> _Round:
    sampling = None
    if samples:
        shape = (size, proposer.block_size)
        sampling = BlockSampling(
            rows=torch.arange(size, device=device),
            temperatures=torch.ones(size, device=device),
            uniforms=torch.full(shape, 0.5, dtype=torch.float64, device=device),
        )
    request = BlockRequest(
        anchor_ids=torch.zeros(size, dtype=torch.long, device=device),
        anchor_positions=torch.zeros(size, dtype=torch.long, device=device),
        slots=torch.full((size, proposer.num_slots), scratch_slot, dtype=torch.long, device=device),
        page_tables=[()] * size,
        context_lens=[0] * size,
        sampling=sampling,
    )

    def run() -> DraftBlock:
        found = proposer.propose(request)

        def kept(name: str, tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else outputs.store(name, tensor)

        return DraftBlock(
            draft_ids=outputs.store("draft_ids", found.draft_ids),
            draft_probs=kept("draft_probs", found.draft_probs),
            confidence_logits=kept("confidence_logits", found.confidence_logits),
        )

    with torch.inference_mode():
        recording = capturer.capture(run)
    return _Round(request, attention, recording)
