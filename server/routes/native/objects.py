"""Builds the response objects and stream events of /generate."""

from collections.abc import Iterator, Mapping, Sequence

from engine import (
    SOURCES,
    Finish,
    FinishReason,
    SourceStats,
    SpeculationStats,
    TokenLogprob,
)
from server.generation.deltas import CompletionOutput, Delta
from server.generation.input_processor import TokenizedRequest
from server.protocol.engine_options import LogprobOptions
from server.routes.logprobs import LogprobSerializer
from server.routes.rounds import round_object


class NativeLogprobs:
    """Builds the log-probability fields of meta_info; none where they are not requested."""

    def __init__(
        self, serializer: LogprobSerializer, options: LogprobOptions | None, *, with_text: bool
    ) -> None:
        self._serializer = serializer
        self._options = options
        self._with_text = with_text

    def fields(
        self,
        tokenized: TokenizedRequest,
        logprobs: Sequence[TokenLogprob],
        prompt_logprobs: Sequence[TokenLogprob],
        *,
        is_continuation: bool = False,
    ) -> dict[str, object]:
        """Return the fields. is_continuation: an earlier event has the prompt's entries."""
        if self._options is None:
            return {}
        output = [(entry.token_id, entry) for entry in logprobs]
        prompt: list[tuple[int, TokenLogprob | None]] = [(e.token_id, e) for e in prompt_logprobs]
        if tokenized.params.prompt_logprobs_from == 0 and not is_continuation:
            prompt.insert(0, (tokenized.prompt_ids[0], None))
        fields: dict[str, object] = {}
        for name, entries in (("input", prompt), ("output", output)):
            fields[f"{name}_token_logprobs"] = self._serializer.native(
                entries, with_text=self._with_text
            )
            if self._options.num_top:
                fields[f"{name}_top_logprobs"] = self._serializer.native_top(
                    entries, with_text=self._with_text
                )
            if tokenized.params.logprob_token_ids:
                fields[f"{name}_token_ids_logprobs"] = self._serializer.native_requested(
                    entries, with_text=self._with_text
                )
        return fields


class NativeEncoder:
    """Encodes events with all text so far, as SGLang does; with is_incremental only new text.

    In a list response `index` says which completion an event belongs to.
    """

    def __init__(
        self,
        tokenized: Sequence[TokenizedRequest],
        logprobs: NativeLogprobs,
        *,
        is_list: bool,
        is_incremental: bool,
        with_rounds: bool = False,
    ) -> None:
        self._choices = [
            _Choice(item, logprobs, is_incremental=is_incremental, with_rounds=with_rounds)
            for item in tokenized
        ]
        self._is_list = is_list

    def encode(self, index: int, delta: Delta) -> Iterator[Mapping[str, object]]:
        event = self._choices[index].event(delta)
        yield {**event, "index": index} if self._is_list else event

    def end(self) -> Iterator[Mapping[str, object]]:
        yield from ()


class _Choice:
    """Builds the events of one completion; accumulates unless is_incremental."""

    def __init__(
        self,
        tokenized: TokenizedRequest,
        logprobs: NativeLogprobs,
        *,
        is_incremental: bool,
        with_rounds: bool,
    ) -> None:
        self._tokenized = tokenized
        self._logprobs = logprobs
        self._is_incremental = is_incremental
        self._with_rounds = with_rounds
        self._num_tokens = 0
        self._sent = Delta("", (), None, 0.0)

    def event(self, delta: Delta) -> dict[str, object]:
        is_continuation = self._is_incremental and self._num_tokens > 0
        self._num_tokens += len(delta.token_ids)
        if not self._is_incremental:
            delta = self._sent = Delta(
                self._sent.text + delta.text,
                self._sent.token_ids + delta.token_ids,
                delta.finish,
                delta.seconds,
                logprobs=self._sent.logprobs + delta.logprobs,
                prompt_logprobs=self._sent.prompt_logprobs + delta.prompt_logprobs,
                rounds=self._sent.rounds + delta.rounds if self._with_rounds else (),
            )
        if delta.finish is None:
            meta: dict[str, object] = {
                "id": self._tokenized.names[0],
                "finish_reason": None,
                "prompt_tokens": len(self._tokenized.prompt_ids),
                "completion_tokens": self._num_tokens,
            }
        else:
            meta = _meta_info(self._tokenized, delta.finish, delta.seconds)
        meta |= self._logprobs.fields(
            self._tokenized,
            delta.logprobs,
            delta.prompt_logprobs,
            is_continuation=is_continuation,
        )
        if self._with_rounds:
            meta["rounds"] = [round_object(each) for each in delta.rounds]
        return {"text": delta.text, "output_ids": delta.token_ids, "meta_info": meta}


def completion_object(
    tokenized: TokenizedRequest, output: CompletionOutput, logprobs: NativeLogprobs
) -> dict[str, object]:
    """Return the response object of a finished completion."""
    meta = _meta_info(tokenized, output.finish, output.seconds)
    meta |= logprobs.fields(tokenized, output.logprobs, output.prompt_logprobs)
    return {"text": output.text, "output_ids": output.token_ids, "meta_info": meta}


def _meta_info(tokenized: TokenizedRequest, finish: Finish, seconds: float) -> dict[str, object]:
    stats = finish.speculation
    return {
        "id": tokenized.names[0],
        "finish_reason": _finish_reason(finish),
        "prompt_tokens": finish.num_prompt_tokens,
        "completion_tokens": finish.num_output_tokens,
        "cached_tokens": finish.num_cached_tokens,
        "e2e_latency": seconds,
        "queue_time": finish.queue_seconds,
        "prefill_time": finish.prefill_seconds,
        "decode_time": finish.decode_seconds,
        "spec_accept_length": stats.mean_accept_length,
        "spec_accept_rate": stats.accept_rate,
        "spec_verify_ct": stats.num_rounds,
        "spec_accept_histogram": stats.accept_counts,
        "spec_accept_token_num": stats.num_accepted,
        "spec_draft_token_num": stats.num_draft_tokens,
        "spec_sources": spec_sources(stats),
    }


def spec_sources(stats: SpeculationStats) -> dict[str, dict[str, int]]:
    """Return rounds, drafted and accepted tokens by source; docs/http.md describes them."""
    found = {name: stats.sources.get(name, SourceStats()) for name in SOURCES}
    return {
        name: {
            "rounds": source.num_rounds,
            "drafted": source.num_draft_tokens,
            "accepted": source.num_accepted,
        }
        for name, source in found.items()
    }


def _finish_reason(finish: Finish) -> dict[str, object]:
    match finish.reason:
        case FinishReason.STOP:
            return {"type": "stop", "matched": finish.matched}
        case FinishReason.LENGTH:
            return {"type": "length", "length": finish.num_output_tokens}
        case FinishReason.ABORT:
            return {"type": "abort", "message": "aborted"}
        case FinishReason.ERROR:
            return {"type": "error", "message": finish.error}
