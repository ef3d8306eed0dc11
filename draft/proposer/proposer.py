"""Proposes draft tokens: DSparkProposer runs the draft network, NoDraft proposes nothing."""

import copy
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from draft.context.context_kernel import ContextKernel
from draft.context.context_kv import ContextKVMode, ContextKVPath, ContextKVWriter
from draft.network.linear import LinearFunction
from draft.network.network import DSparkNetwork
from draft.proposer.block import BlockRequest, DraftBlock
from draft.proposer.block_kernel import BlockKernel, BlockPass
from draft.proposer.markov_sampling import draft_chain
from draft.proposer.masking import MaskedChain, satisfies_mask
from kv_pool import AttentionBackend, AttentionOptions, AttentionPlan, KVPool


class Proposer(Protocol):
    """Proposes a block of tokens after each anchor.

    Verification results reach it only as the hidden states of committed tokens, through
    write_context. No method waits for the device, except for a mask, which runs on the host.
    """

    @property
    def block_size(self) -> int:
        """Count the draft tokens of a block; 0 without a draft."""
        ...

    @property
    def num_slots(self) -> int:
        """Count the scratch KV slots of a block, from its anchor on; 0 without a draft."""
        ...

    @property
    def tap_layers(self) -> tuple[int, ...]:
        """List the target layers whose outputs form aux_hidden, in order; -1: embedding."""
        ...

    def propose(self, request: BlockRequest) -> DraftBlock: ...

    def write_context(
        self,
        aux_hidden: Float[Tensor, "N A"],
        positions: Int[Tensor, "N"],
        slots: Int[Tensor, "N"],
    ) -> None:
        """Write the context KV of N committed tokens, in any order, each token once."""
        ...

    def set_context_kv(self, mode: ContextKVMode) -> None:
        """Set the context writer's mode. Raises ValueError if `on` is not possible."""
        ...

    @property
    def context_kv_path(self) -> ContextKVPath: ...

    @property
    def context_kv_reason(self) -> str | None:
        """Return why the path is per_layer; None otherwise."""
        ...


class DSparkProposer:
    """Runs a DSpark network over its context KV in the pool."""

    def __init__(
        self,
        *,
        network: DSparkNetwork,
        pool: KVPool,
        attention: AttentionBackend,
        context_kv: ContextKVMode = "auto",
        linear: LinearFunction = F.linear,
        block_kernel: BlockKernel | None = None,
        context_kernel: ContextKernel | None = None,
    ) -> None:
        """linear: computes the stacked context product.
        block_kernel, context_kernel: replace PyTorch unless they decline; block_kernel was built
        for this network and pool.

        Raises ValueError with the reason if context_kv is `on` and the layers cannot be stacked.
        """
        assert pool.num_draft_layers == network.config.num_layers, (
            f"a pool of {pool.num_draft_layers} draft layers for {network.config.num_layers}"
        )
        assert pool.draft_keys.dtype == network.dtype, (
            f"a pool of {pool.draft_keys.dtype} for a draft in {network.dtype}"
        )
        self._network = network
        self._pool = pool
        self._attention = attention
        self._kernel = block_kernel
        self._writer = ContextKVWriter(
            network=network, pool=pool, mode=context_kv, linear=linear, kernel=context_kernel
        )
        self._steps = torch.arange(self.num_slots, device=pool.draft_keys.device)

    @property
    def block_size(self) -> int:
        return self._network.config.block_size

    @property
    def num_slots(self) -> int:
        return self._network.config.num_slots

    @property
    def tap_layers(self) -> tuple[int, ...]:
        return self._network.config.tap_layers

    def with_attention(self, attention: AttentionBackend) -> "DSparkProposer":
        """Return a proposer with the same network, pool and writer, but another backend."""
        twin = copy.copy(self)
        twin._attention = attention
        return twin

    def propose(self, request: BlockRequest) -> DraftBlock:
        """Run one draft pass over all blocks, then sample their tokens left to right."""
        done = self.run_pass(request)
        if done.draft_ids is None:
            return self.sample_tokens(request, done)
        if request.mask is None or satisfies_mask(request.mask, done.draft_ids, request.anchor_ids):
            return DraftBlock(done.draft_ids, None, done.confidence_logits)
        return self.sample_tokens(request, done)

    def run_pass(self, request: BlockRequest) -> BlockPass:
        """Run the draft pass in the kernel, or in PyTorch if there is none or it declines."""
        done = self._kernel.run(request) if self._kernel is not None else None
        return self.run_torch_pass(request) if done is None else done

    def run_torch_pass(self, request: BlockRequest) -> BlockPass:
        """Run the draft pass in PyTorch, without sampling. Kernels are checked against it."""
        network, anchor_ids = self._network, request.anchor_ids
        hidden = network.hidden(
            network.block_ids(anchor_ids),
            request.anchor_positions[:, None] + self._steps,
            self._paged_block(request),
        )
        logits = network.base_logits(network.predicting_slots(hidden))
        return BlockPass(hidden, logits, draft_ids=None, confidence_logits=None)

    def sample_tokens(self, request: BlockRequest, done: BlockPass) -> DraftBlock:
        """Sample the tokens of a pass in PyTorch, ignoring draft_ids of the pass."""
        network, anchor_ids = self._network, request.anchor_ids
        hidden, state = network.predicting(done.hidden, anchor_ids)
        masked = None if request.mask is None else MaskedChain(request.mask, network.vocabulary)
        draft_ids, draft_probs = draft_chain(
            network.markov_head,
            hidden,
            done.base_logits,
            anchor_ids,
            request.sampling,
            state=state,
            vocabulary=network.vocabulary,
            mask=masked,
        )
        if draft_probs is not None and network.vocabulary is not None:
            draft_probs = network.vocabulary.scatter(
                draft_probs, vocab_size=network.config.vocab_size
            )
        if draft_probs is not None and masked is not None and request.sampling is not None:
            draft_probs = masked.force_probs(draft_probs, request.sampling.rows)
        confidence = network.confidence_logits(hidden, anchor_ids, draft_ids)
        return DraftBlock(draft_ids, draft_probs, confidence)

    def write_context(
        self,
        aux_hidden: Float[Tensor, "N A"],
        positions: Int[Tensor, "N"],
        slots: Int[Tensor, "N"],
    ) -> None:
        self._writer.write_context_kv(aux_hidden, positions, slots)

    def write_committed_context(
        self,
        aux_hidden: Float[Tensor, "B W A"],
        positions: Int[Tensor, "B W"],
        slots: Int[Tensor, "B W"],
        commit_lens: Int[Tensor, "B"],
    ) -> None:
        """Write context in static shapes; see ContextKVWriter.write_committed_kv."""
        self._writer.write_committed_kv(aux_hidden, positions, slots, commit_lens)

    def set_context_kv(self, mode: ContextKVMode) -> None:
        self._writer.set_mode(mode)

    @property
    def context_kv_mode(self) -> ContextKVMode:
        return self._writer.mode

    @property
    def context_kv_path(self) -> ContextKVPath:
        return self._writer.path

    @property
    def context_kv_reason(self) -> str | None:
        return self._writer.reason

    def _paged_block(self, request: BlockRequest) -> "_PagedBlock":
        assert request.least_context_lens is None, "lengths must be on the host"
        num_sequences, width = request.slots.shape
        assert width == self.num_slots, f"{width} slots for a block of {self.num_slots}"
        causal = [layer.causal for layer in self._network.config.layers]
        plans = {
            is_causal: self._attention.plan(
                query_lens=[width] * num_sequences,
                kv_lens=[length + width for length in request.context_lens],
                page_tables=request.page_tables,
                causal=is_causal,
            )
            for is_causal in set(causal)
        }
        by_layer = tuple(plans[is_causal] for is_causal in causal)
        return _PagedBlock(self._pool, by_layer, request.slots.flatten())


@dataclass(frozen=True, slots=True)
class _PagedBlock:
    """Implements BlockAttend: writes the block's KV to its scratch slots, then attends."""

    pool: KVPool
    plans: tuple[AttentionPlan, ...]  # by layer
    slots: Tensor

    def attend(
        self,
        layer: int,
        query: Float[Tensor, "T H D"],
        keys: Float[Tensor, "T Hkv D"],
        values: Float[Tensor, "T Hkv D"],
        *,
        scale: float,
        window: int | None,
    ) -> Float[Tensor, "T H D"]:
        self.pool.write_draft_layer(layer, self.slots, keys, values)
        return self.plans[layer].attend(
            query,
            self.pool.draft_keys[layer],
            self.pool.draft_values[layer],
            AttentionOptions(scale, window),
        )


class NoDraft:
    """Proposes empty blocks: decoding without speculation."""

    block_size = 0
    num_slots = 0
    tap_layers: tuple[int, ...] = ()
    context_kv_path: ContextKVPath = "none"
    context_kv_reason: str | None = None

    def propose(self, request: BlockRequest) -> DraftBlock:
        empty = request.anchor_ids.new_empty((request.anchor_ids.shape[0], 0))
        return DraftBlock(draft_ids=empty, draft_probs=None, confidence_logits=None)

    def write_context(
        self,
        aux_hidden: Float[Tensor, "N A"],
        positions: Int[Tensor, "N"],
        slots: Int[Tensor, "N"],
    ) -> None:
        """Do nothing."""

    def set_context_kv(self, mode: ContextKVMode) -> None:
        if mode == "on":
            raise ValueError("the stacked context writer cannot be on: there is no draft")
