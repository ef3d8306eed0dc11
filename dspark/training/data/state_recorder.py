"""Records hidden states while the engine generates answers, to save a second pass."""

import logging
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from draft import DraftBlock
from dspark.training.data.examples import HiddenStates, TokenSequence
from dspark.training.data.feature_store import FeatureStore
from engine.loading.target import LoadedTarget, by_transformers_alone, fastest_attention
from engine.runner.taps import Taps
from engine.runner.target_model import TargetOutput
from engine.scheduler.plan import StepPlan
from engine.scheduler.scheduler import Committed
from engine.scheduler.sequence import SequenceState

logger = logging.getLogger(__name__)

_PROBE_TOKENS = 8
_TOLERANCE = 1e-5

# final states [T, E] in the target's dtype, first row to compute -> [T]; zeros before it
Normalise = Callable[[Tensor, int], Tensor]


class HiddenStateRecorder:
    """A StepObserver that stores the hidden states of every finished answer.

    The last tap of each pass is the output of the target's last layer, the input of the final
    norm. Rows that a preempted sequence computes again are ignored. A sequence with rows from the
    prefix cache, which are never computed, is left out.
    """

    def __init__(
        self,
        *,
        store: FeatureStore,
        final_norm: nn.Module,
        hidden_size: int,
        normalise: Normalise | None,
        min_answer_tokens: int,
    ) -> None:
        """normalise: None uses the logits of the pass, which must be float32."""
        self._store = store
        self._final_norm = final_norm
        self._hidden_size = hidden_size
        self._normalise = normalise
        self._min_answer_tokens = min_answer_tokens
        self._partial: dict[str, _PartialStates] = {}  # by request id
        self.num_stored = 0
        self.num_skipped = 0  # over the budget, or with rows that were not computed

    def record(
        self,
        plan: StepPlan,
        block: DraftBlock | None,
        output: TargetOutput,
        committed: Sequence[Committed],
    ) -> None:
        assert block is None, "recording needs an engine without a draft"
        size = self._hidden_size
        taps = output.aux_hidden[:, :-size].to("cpu", torch.bfloat16)
        final = self._final_norm(output.aux_hidden[:, -size:])
        final = final.to("cpu", torch.bfloat16 if self._normalise is None else final.dtype)
        normalisers = self._of_logits(output.logits)
        row = 0
        for scheduled in plan.scheduled_seqs:
            partial = self._partial_of(scheduled.seq)
            rows = slice(row, row + scheduled.num_rows)
            partial.put(scheduled.start, taps[rows], final[rows])
            if scheduled.samples and normalisers:
                partial.put_normaliser(scheduled.stop - 1, normalisers.pop(0))
            row += scheduled.num_rows
        for done in committed:
            if done.event is not None and done.event.finish is not None:
                self._finish(done.scheduled.seq)

    def _of_logits(self, logits: Float[Tensor, "R V"]) -> list[float]:
        """Return logsumexp for each sampling sequence, in order; empty if states are used."""
        if self._normalise is not None or not len(logits):
            return []
        found: list[float] = torch.logsumexp(logits.float(), dim=-1).tolist()
        return found

    def _partial_of(self, seq: SequenceState) -> "_PartialStates":
        name = seq.request.request_id
        if name not in self._partial:
            self._partial[name] = _PartialStates(seq.num_prompt)
        return self._partial[name]

    def _finish(self, seq: SequenceState) -> None:
        partial = self._partial.pop(seq.request.request_id)
        if seq.num_output < self._min_answer_tokens:
            return
        hidden = partial.complete(len(seq.token_ids), self._normalise)
        sequence = TokenSequence(tuple(seq.token_ids), seq.num_prompt)
        if hidden is not None and self._store.add(sequence, hidden):
            self.num_stored += 1
        else:
            self.num_skipped += 1


class _PartialStates:
    """The rows of one sequence so far, on the CPU."""

    def __init__(self, num_prompt: int) -> None:
        self._num_prompt = num_prompt
        self._num_known = 0  # leading rows
        self._taps: list[Tensor] = []
        self._final: list[Tensor] = []
        self._normalisers: dict[int, float] = {}  # by position

    def put(self, start: int, taps: Float[Tensor, "N A"], final: Float[Tensor, "N E"]) -> None:
        """Add rows from position `start`; known rows are ignored."""
        new = self._num_known - start
        if 0 <= new < len(taps):  # rows after a gap are useless
            self._taps.append(taps[new:].clone())
            self._final.append(final[new:].clone())
            self._num_known = start + len(taps)

    def put_normaliser(self, position: int, value: float) -> None:
        self._normalisers[position] = value

    def complete(self, length: int, normalise: Normalise | None) -> HiddenStates | None:
        """Return the states of `length` tokens; None if a row but the last is missing."""
        if self._num_known < length - 1:
            return None
        taps, final = (_with_empty_row(rows) for rows in (self._taps, self._final))
        if normalise is not None:
            return HiddenStates(taps, final, normalise(final, self._num_prompt))
        normalisers = torch.zeros(length)
        for position in range(self._num_prompt, length - 1):
            normalisers[position] = self._normalisers[position]
        return HiddenStates(taps, final, normalisers)


def final_norm_of(target: LoadedTarget, *, device: torch.device) -> nn.Module | None:
    """Return the norm between the target's last layer and its head; None if it is not all.

    Verified on the model with a few tokens.
    """
    backbone = target.model.get_decoder()  # type: ignore[operator]
    norm = getattr(backbone, "norm", None)
    if not isinstance(norm, nn.Module):
        return None
    ids = torch.arange(_PROBE_TOKENS, device=device) % target.vocab_size
    last = [target.num_layers - 1]
    taps = Taps(embedding=target.parts.embedding, layers=target.parts.layers, layer_ids=last)
    attention = fastest_attention(target.model)
    with torch.no_grad(), by_transformers_alone(target.model, attention), taps:
        final = backbone(input_ids=ids[None], use_cache=False).last_hidden_state[0]
        normed = norm(taps.take(len(ids)))
    is_all = torch.allclose(normed, final, rtol=_TOLERANCE, atol=_TOLERANCE)
    return norm if is_all else None


def _with_empty_row(pieces: list[Tensor]) -> Tensor:
    return torch.cat([*pieces, pieces[0].new_zeros(1, pieces[0].shape[1])])
