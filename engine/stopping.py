"""Where a sequence ends: the one place that cuts."""

from engine.api import FinishReason, Request
from engine.sequence import SequenceState

Stop = tuple[FinishReason, int | str | None]


def stop_after(seq: SequenceState, token_id: int, eos_ids: frozenset[int]) -> Stop | None:
    """The stop that `token_id`, just appended to the sequence, completes.

    A stop wins over the length limit on the same token. Every committed token passes here
    exactly once and in order, for the scanner's sake.
    """
    request = seq.request
    matched = _match(request, token_id, eos_ids)
    if matched is not None:
        return FinishReason.STOP, matched
    if seq.num_remaining <= 0:
        return FinishReason.LENGTH, None
    return None


def _match(request: Request, token_id: int, eos_ids: frozenset[int]) -> int | str | None:
    stop_string = request.stop_scanner.feed(token_id) if request.stop_scanner else None
    if token_id in request.params.stop_token_ids:
        return token_id
    if token_id in eos_ids and not request.params.ignore_eos:
        return token_id
    return stop_string
