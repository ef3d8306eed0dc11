"""Logs one key=value line per HTTP request; never a prompt."""

import json
import logging
import re
from collections.abc import Sequence

from engine import Finish, FinishReason
from server.http.request_records import AbortedCompletion, RequestRecord

logger = logging.getLogger(__name__)

_POLLED = frozenset({"/health", "/ready", "/metrics", "/server_info"})  # by probes and pages
_PLAIN = re.compile(r"[!#-~]+")
_LONGEST_PATH = 200


def log_request(record: RequestRecord) -> None:
    """Log a finished request; polled routes at level debug. A listener of RequestRecorder."""
    level = logging.DEBUG if record.path in _POLLED else logging.INFO
    if logger.isEnabledFor(level):
        logger.log(level, "%s", " ".join(f"{key}={value}" for key, value in _pairs(record)))


def _pairs(record: RequestRecord) -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = [
        ("request_id", _value(record.request_id)),
        ("client", _value(record.client)),
        ("method", _value(record.method)),
        ("path", _value(record.path)),
        ("status", record.status),
        ("seconds", f"{record.seconds:.3f}"),
    ]
    if record.completions or record.aborted:
        pairs += _count_pairs(record)
    if record.completions:
        pairs += _finish_pairs([completion.finish for completion in record.completions])
    return pairs


def _count_pairs(record: RequestRecord) -> list[tuple[str, object]]:
    """Return sums over the completions of a request, aborted ones included."""
    finishes, aborted = [c.finish for c in record.completions], record.aborted
    reasons = {f.reason for f in finishes} | ({FinishReason.ABORT} if aborted else set())
    completions: list[Finish | AbortedCompletion] = [*finishes, *aborted]
    return [
        ("answers", len(completions)),
        ("finish", ",".join(sorted(reasons))),
        ("prompt_tokens", sum(c.num_prompt_tokens for c in completions)),
        ("output_tokens", sum(c.num_output_tokens for c in completions)),
    ]


def _finish_pairs(finishes: Sequence[Finish]) -> list[tuple[str, object]]:
    """Return what only a finish has. Counts are sums, times are maxima."""
    rounds = sum(finish.speculation.num_rounds for finish in finishes)
    accepted = sum(finish.speculation.num_accepted for finish in finishes)
    return [
        ("cached_tokens", sum(finish.num_cached_tokens for finish in finishes)),
        ("queue_s", f"{max(finish.queue_seconds for finish in finishes):.3f}"),
        ("prefill_s", f"{max(finish.prefill_seconds for finish in finishes):.3f}"),
        ("decode_s", f"{max(finish.decode_seconds for finish in finishes):.3f}"),
        ("accept_length", f"{1 + accepted / rounds:.2f}" if rounds else "none"),
    ]


def _value(text: str) -> str:
    """Quote spaces and line breaks, so that a client cannot forge a log line."""
    text = text[:_LONGEST_PATH]
    return text if _PLAIN.fullmatch(text) else json.dumps(text).replace(" ", "\\u0020")
