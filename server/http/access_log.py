"""One line for every request, in key=value; never a prompt."""

import json
import logging
import re
from collections.abc import Sequence

from engine import Finish, FinishReason
from server.http.request_records import GivenUp, RequestRecord

logger = logging.getLogger(__name__)

_POLLED = frozenset({"/health", "/ready", "/metrics"})  # by machines, every few seconds
_PLAIN = re.compile(r"[!#-~]+")
_LONGEST_PATH = 200


def log_request(record: RequestRecord) -> None:
    """A listener of `Records`. What is polled is logged at debug."""
    level = logging.DEBUG if record.path in _POLLED else logging.INFO
    if logger.isEnabledFor(level):
        logger.log(level, "%s", " ".join(f"{key}={value}" for key, value in _pairs(record)))


def _pairs(record: RequestRecord) -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = [
        ("request_id", _word(record.request_id)),
        ("client", _word(record.client)),
        ("method", _word(record.method)),
        ("path", _word(record.path)),
        ("status", record.status),
        ("seconds", f"{record.seconds:.3f}"),
    ]
    if record.answers or record.given_up:
        pairs += _count_pairs(record)
    if record.answers:
        pairs += _answer_pairs([answer.finish for answer in record.answers])
    return pairs


def _count_pairs(record: RequestRecord) -> list[tuple[str, object]]:
    """Sums over the answers of a request, those that were given up included."""
    ends, given_up = [answer.finish for answer in record.answers], record.given_up
    reasons = {end.reason for end in ends} | ({FinishReason.ABORT} if given_up else set())
    told: list[Finish | GivenUp] = [*ends, *given_up]
    return [
        ("answers", len(told)),
        ("finish", ",".join(sorted(reasons))),
        ("prompt_tokens", sum(answer.num_prompt_tokens for answer in told)),
        ("output_tokens", sum(answer.num_output_tokens for answer in told)),
    ]


def _answer_pairs(ends: Sequence[Finish]) -> list[tuple[str, object]]:
    """What only an end tells. Counts are sums; times are the longest one's."""
    rounds = sum(end.speculation.num_rounds for end in ends)
    accepted = sum(end.speculation.num_accepted for end in ends)
    return [
        ("cached_tokens", sum(end.num_cached_tokens for end in ends)),
        ("queue_s", f"{max(end.queue_seconds for end in ends):.3f}"),
        ("prefill_s", f"{max(end.prefill_seconds for end in ends):.3f}"),
        ("decode_s", f"{max(end.decode_seconds for end in ends):.3f}"),
        ("accept_length", f"{1 + accepted / rounds:.2f}" if rounds else "none"),
    ]


def _word(text: str) -> str:
    """Without blanks and line ends, so that nobody can write a line of their own."""
    text = text[:_LONGEST_PATH]
    return text if _PLAIN.fullmatch(text) else json.dumps(text).replace(" ", "\\u0020")
