"""Hidden states of answers, kept while the engine answers: no second pass has to read them."""

import logging
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from draft import DraftBlock
from dspark.training.data.examples import HiddenStates, TokenSequence
from dspark.training.data.feature_store import FeatureStore
from engine.loading.target import LoadedTarget, by_transformers_alone
from engine.runner.taps import Taps
from engine.runner.target_model import TargetOutput
from engine.scheduler.plan import StepPlan
from engine.scheduler.scheduler import Committed
from engine.scheduler.sequence import SequenceState

logger = logging.getLogger(__name__)

_PROBE_TOKENS = 8
_TOLERANCE = 1e-5

# final states [T, E] in the target's dtype, first row that is asked for -> [T]; zeros before it
Normalise = Callable[[Tensor, int], Tensor]


class StateKeeper:
    """A StepObserver that puts every answer's hidden states into a store as the answer ends.

    Each pass of the engine hands over its rows' taps, the last of which is the output of the
    target's last layer, for the final norm. A preempted sequence computes its rows again, which
    changes nothing here. A sequence of which a row was never computed, because the prefix cache
    had it, is left out.
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
        """normalise: None takes the logits of the pass, which must be of float32."""
        self._store = store
        self._final_norm = final_norm
        self._hidden_size = hidden_size
        self._normalise = normalise
        self._min_answer_tokens = min_answer_tokens
        self._growing: dict[str, _Growing] = {}  # by request id
        self.num_kept = 0
        self.num_left = 0  # without room, or with rows that were never computed

    def record(
        self,
        plan: StepPlan,
        block: DraftBlock | None,
        output: TargetOutput,
        committed: Sequence[Committed],
    ) -> None:
        assert block is None, "rows of drafts are not kept"
        size = self._hidden_size
        taps = output.aux_hidden[:, :-size].to("cpu", torch.bfloat16)
        final = self._final_norm(output.aux_hidden[:, -size:])
        final = final.to("cpu", torch.bfloat16 if self._normalise is None else final.dtype)
        normalisers = self._of_logits(output.logits)
        row = 0
        for scheduled in plan.scheduled_seqs:
            growing = self._of(scheduled.seq)
            rows = slice(row, row + scheduled.num_rows)
            growing.put(scheduled.start, taps[rows], final[rows])
            if scheduled.samples and normalisers:
                growing.put_normaliser(scheduled.stop - 1, normalisers.pop(0))
            row += scheduled.num_rows
        for done in committed:
            if done.event is not None and done.event.finish is not None:
                self._finish(done.scheduled.seq)

    def _of_logits(self, logits: Float[Tensor, "R V"]) -> list[float]:
        """One of each sampling scheduled, in order; none if states are asked instead."""
        if self._normalise is not None or not len(logits):
            return []
        found: list[float] = torch.logsumexp(logits.float(), dim=-1).tolist()
        return found

    def _of(self, seq: SequenceState) -> "_Growing":
        name = seq.request.request_id
        if name not in self._growing:
            self._growing[name] = _Growing(seq.num_prompt)
        return self._growing[name]

    def _finish(self, seq: SequenceState) -> None:
        growing = self._growing.pop(seq.request.request_id)
        if seq.num_output < self._min_answer_tokens:
            return
        hidden = growing.whole(len(seq.token_ids), self._normalise)
        sequence = TokenSequence(tuple(seq.token_ids), seq.num_prompt)
        if hidden is not None and self._store.add(sequence, hidden):
            self.num_kept += 1
        else:
            self.num_left += 1


class _Growing:
    """What is known of one sequence so far, on the processor."""

    def __init__(self, num_prompt: int) -> None:
        self._num_prompt = num_prompt
        self._num_known = 0  # leading rows
        self._taps: list[Tensor] = []
        self._final: list[Tensor] = []
        self._normalisers: dict[int, float] = {}  # by position

    def put(self, start: int, taps: Float[Tensor, "N A"], final: Float[Tensor, "N E"]) -> None:
        """Rows from position `start` on; those that are known already are passed over."""
        new = self._num_known - start
        if 0 <= new < len(taps):  # with a gap before them they are of no use
            self._taps.append(taps[new:].clone())
            self._final.append(final[new:].clone())
            self._num_known = start + len(taps)

    def put_normaliser(self, position: int, value: float) -> None:
        self._normalisers[position] = value

    def whole(self, length: int, normalise: Normalise | None) -> HiddenStates | None:
        """Of so many tokens, the last of which was never computed; None if others were not."""
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
    """The norm between the target's last layer and its head; None if there is more to it.

    Asked of the model itself, with a few tokens.
    """
    backbone = target.model.get_decoder()  # type: ignore[operator]
    norm = getattr(backbone, "norm", None)
    if not isinstance(norm, nn.Module):
        return None
    ids = torch.arange(_PROBE_TOKENS, device=device) % target.vocab_size
    last = [target.num_layers - 1]
    taps = Taps(embedding=target.parts.embedding, layers=target.parts.layers, layer_ids=last)
    with torch.no_grad(), by_transformers_alone(target.model, "sdpa"), taps:
        final = backbone(input_ids=ids[None], use_cache=False).last_hidden_state[0]
        normed = norm(taps.take(len(ids)))
    is_all = torch.allclose(normed, final, rtol=_TOLERANCE, atol=_TOLERANCE)
    return norm if is_all else None


def _with_empty_row(pieces: list[Tensor]) -> Tensor:
    return torch.cat([*pieces, pieces[0].new_zeros(1, pieces[0].shape[1])])
