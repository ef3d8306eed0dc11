"""Finds the stop that ends a sequence; no other code cuts its tokens."""

from engine.api import EngineSamplingParams, FinishReason
from engine.scheduler.sequence import SequenceState

Stop = tuple[FinishReason, int | str | None]


def stop_ids(params: EngineSamplingParams, eos_ids: frozenset[int]) -> frozenset[int]:
    """Return the tokens that end a request; min_new_tokens masks exactly these."""
    return params.stop_token_ids if params.ignore_eos else params.stop_token_ids | eos_ids


def stop_after(seq: SequenceState, token_id: int) -> Stop | None:
    """Return the stop that `token_id`, just appended to the sequence, completes.

    A stop wins over the length limit on the same token. Call it exactly once for every
    committed token, in order: the stop scanner and the token mask keep state.
    """
    matched = _match(seq, token_id)
    is_exhausted = _exhausts_mask(seq, token_id)
    if matched is not None or is_exhausted:
        return FinishReason.STOP, matched
    if seq.num_remaining <= 0:
        return FinishReason.LENGTH, None
    return None


def _match(seq: SequenceState, token_id: int) -> int | str | None:
    scanner = seq.request.stop_scanner
    stop_string = scanner.feed(token_id) if scanner is not None else None
    return token_id if token_id in seq.stop_ids else stop_string


def _exhausts_mask(seq: SequenceState, token_id: int) -> bool:
    mask = seq.request.token_mask
    return mask is not None and mask.commit(token_id)
