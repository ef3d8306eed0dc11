"""Runs the target, a Hugging Face decoder, over packed rows and paged keys and values.

A pass is one call where CPU kernels support the model, and runs transformers' layers otherwise. On
a GPU passes over small windows are replayed: see engine.cuda_graphs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from jaxtyping import Float, Int
from torch import Tensor, nn

from engine.runner.batch import ScheduleBatch
from engine.runner.hf_attention import IMPLEMENTATION, LayerAttention, attending_with
from engine.runner.taps import Taps
from kv_pool import AttentionBackend, AttentionOptions, AttentionPlan, KVPool


@dataclass(frozen=True, slots=True)
class GreedyVerdict:
    """The verdict of a step whose sequences all sample and take the argmax of raw logits."""

    num_accepted: Int[Tensor, " B"]
    output_ids: Int[Tensor, "B W"]  # accepted drafts, the bonus token, and columns without meaning

    @property
    def bonus_ids(self) -> Int[Tensor, " B"]:
        return self.output_ids.gather(1, self.num_accepted[:, None])[:, 0]


class TargetOutput:
    """The results of one pass, valid until the next one.

    Replayed passes have them in another order of rows, and pick rows only where they are read.
    """

    def __init__(
        self,
        logits: Tensor | Callable[[], Tensor],
        aux_hidden: Tensor | Callable[[], Tensor],
        *,
        verdict: GreedyVerdict | None = None,
        has_written_context: bool = False,
    ) -> None:
        """verdict: None where the pass computed none.
        has_written_context: of every row, also of those that may be rejected.
        """
        self._logits = logits
        self._aux_hidden = aux_hidden
        self.verdict = verdict
        self.has_written_context = has_written_context

    @property
    def logits(self) -> Float[Tensor, "R V"]:
        """Return the logits of batch.logit_rows."""
        if not isinstance(self._logits, Tensor):
            self._logits = self._logits()
        return self._logits

    @property
    def aux_hidden(self) -> Float[Tensor, "T A"]:
        """Return every row's tapped hidden states; A = 0 without taps."""
        if not isinstance(self._aux_hidden, Tensor):
            self._aux_hidden = self._aux_hidden()
        return self._aux_hidden


@dataclass(frozen=True, slots=True)
class PagedAttention:
    """A step's attention: stores this step's keys and values, then attends over pages."""

    pool: KVPool
    plan: AttentionPlan
    slots: Int[Tensor, " T"]

    def attend(
        self,
        layer: int,
        query: Float[Tensor, "T H D"],
        keys: Float[Tensor, "T Hkv D"],
        values: Float[Tensor, "T Hkv Dv"],
        options: AttentionOptions,
    ) -> Float[Tensor, "T H Dv"]:
        self.pool.write_target(layer, self.slots, keys, values)
        return self.plan.attend(
            query,
            self.pool.target_keys(layer),
            self.pool.target_values(layer),
            options,
        )


@dataclass(frozen=True, slots=True)
class DecoderParts:
    """The modules of a causal language model that the engine uses."""

    embedding: nn.Module
    layers: nn.ModuleList
    lm_head: nn.Module

    @classmethod
    def of(cls, model: nn.Module) -> "DecoderParts":
        """Find the modules. Raises AttributeError when the model is not built like a decoder."""
        backbone = model.get_decoder()  # type: ignore[operator]
        layers = getattr(backbone, "h", None)  # GPT-2's name
        return cls(
            embedding=model.get_input_embeddings(),  # type: ignore[operator]
            layers=backbone.layers if layers is None else layers,
            lm_head=model.get_output_embeddings(),  # type: ignore[operator]
        )


class PackedDecoder(Protocol):
    """Runs whole passes of one model over one pool, up to max_rows rows each."""

    max_rows: int

    def run(self, batch: ScheduleBatch) -> tuple[Tensor, Tensor]:
        """Return logits [R, V] of batch.logit_rows and taps [T, A], valid until the next run."""
        ...


class Target(Protocol):
    """Runs passes of a target over schedule batches."""

    @property
    def vocab_size(self) -> int: ...

    def forward(self, batch: ScheduleBatch) -> TargetOutput:
        """Run one pass over all rows; logits of batch.logit_rows. Valid until the next pass."""
        ...


class TargetModel:
    """A Target over one model, which must have `IMPLEMENTATION` for its attention."""

    def __init__(
        self,
        *,
        model: nn.Module,
        tap_layers: tuple[int, ...],
        pool: KVPool,
        attention: AttentionBackend,
        vocab_size: int,
        packed_decoder: PackedDecoder | None = None,
    ) -> None:
        """tap_layers: the layers whose outputs a pass returns, concatenated in this order.

        packed_decoder is built for this model, pool and taps. Passes of more rows than it takes,
        and all passes without it, run transformers' layers with `attention`.
        """
        assert model.config._attn_implementation == IMPLEMENTATION  # type: ignore[union-attr]
        self._model = model
        self._pool = pool
        self._attention = attention
        self._packed_decoder = packed_decoder
        self._parts = DecoderParts.of(model)
        self._tap_layers = tap_layers
        self.vocab_size = vocab_size

    def forward(self, batch: ScheduleBatch) -> TargetOutput:
        """See Target.forward."""
        if (
            self._packed_decoder is not None
            and len(batch.token_ids) <= self._packed_decoder.max_rows
        ):
            return TargetOutput(*self._packed_decoder.run(batch))
        return self._forward_by_transformers(batch)

    def _forward_by_transformers(self, batch: ScheduleBatch) -> TargetOutput:
        attention = PagedAttention(
            pool=self._pool,
            plan=self._attention.plan(
                query_lens=batch.query_lens,
                kv_lens=batch.kv_lens,
                page_tables=batch.page_tables,
                causal=True,
            ),
            slots=batch.slot_mapping,
        )
        # Hooks exist during one pass only: engines may share a model and tap it differently.
        with Taps(
            embedding=self._parts.embedding,
            layers=self._parts.layers,
            layer_ids=self._tap_layers,
        ) as taps:
            logits = run_model(
                self._model, batch.token_ids, batch.positions, batch.logit_rows, attention
            )
            return TargetOutput(logits, taps.take(len(batch.token_ids)))


def run_model(
    model: nn.Module,
    token_ids: Int[Tensor, " T"],
    positions: Int[Tensor, " T"],
    logit_rows: Int[Tensor, " R"],
    attention: LayerAttention,
) -> Float[Tensor, "R V"]:
    """Call the Hugging Face model on one packed row of tokens."""
    with attending_with(attention):
        output = model(
            input_ids=token_ids[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=logit_rows,
        )
    logits: Tensor = output.logits[0]
    return logits
