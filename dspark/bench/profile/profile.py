"""Formats the profile of a decode round, part by part against the memory bound."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dspark.bench.profile.decode_steps import PARTS, DecodeSteps
from dspark.bench.profile.first_token import FirstToken
from dspark.bench.report.columns import Row, columns, number
from dspark.bench.report.statistics import Spread

# How a part was timed. The parts of a native call cannot be timed inside it: they are the
# difference to the same pass without them.
WHOLE, DIFFERENCE, ALONE = "timed whole", "by difference", "timed alone"


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a round, and the fewest bytes that it reads."""

    name: str
    time_ms: Spread
    num_bytes: int
    how: str  # WHOLE, DIFFERENCE or ALONE

    def limit_ms(self, bandwidth: float) -> float:
        """Return the time to read num_bytes at `bandwidth` bytes per second."""
        return 1000 * self.num_bytes / bandwidth

    def of_limit(self, bandwidth: float) -> float | None:
        """Return time / limit; None if either is not positive."""
        limit = self.limit_ms(bandwidth)
        return self.time_ms.median / limit if limit > 0 and self.time_ms.median > 0 else None


@dataclass(frozen=True, slots=True)
class Profile:
    """All measurements of one profile, without a verdict."""

    bandwidth: Spread  # bytes per second, with the threads of the engine
    num_threads: int
    context: int  # of the parts, and of by_rows
    window: int  # rows of a verify pass: the anchor and its drafts
    parts: tuple[Part, ...]
    rounds: DecodeSteps  # of the whole engine
    by_context: Mapping[int, tuple[Part, ...]]  # tokens -> a pass of 1 row, one of the window
    by_rows: Mapping[int, Part]
    prefill: Mapping[int, Spread]  # chunk size -> tokens a second
    prompt_len: int
    first_token: FirstToken

    @property
    def holds(self) -> bool:
        return True

    @property
    def best_chunk(self) -> int:
        """Return the chunk size with the highest median tokens/s."""
        return max(self.prefill, key=lambda chunk: self.prefill[chunk].median)

    def lines(self) -> list[str]:
        parts_title = f"parts of a round, one sequence, {self.context} tokens of context"
        speeds = (self.bandwidth.median, self.bandwidth.low, self.bandwidth.high)
        median, low, high = (speed / 1e9 for speed in speeds)
        gigabytes = Spread(median, low, high, self.bandwidth.count)
        return [
            f"memory read by {self.num_threads} threads: {number(gigabytes, unit=' GB/s')}",
            "",
            *self._table(parts_title, [(part.name, part) for part in self.parts]),
            "",
            *self._round_table(),
            "",
            *self._table(
                "one target pass, by context",
                [
                    (f"{context} tokens, {part.name}", part)
                    for context, parts in self.by_context.items()
                    for part in parts
                ],
            ),
            "",
            *self._table(
                f"one target pass after {self.context} tokens, by rows",
                [(part.name, part) for part in self.by_rows.values()],
            ),
            "",
            *self._prefill_table(),
            "",
            *self.first_token.lines(),
        ]

    def values(self) -> Mapping[str, object]:
        return {
            "bandwidth_bytes_per_s": self.bandwidth.values(),
            "context": self.context,
            "window": self.window,
            "parts": {part.name.strip(): self._values(part) for part in self.parts},
            "round_ms": self.rounds.step_ms.values() if self.rounds.steps else None,
            "rounds": len(self.rounds.steps),
            "round_parts_ms": {
                name: self.rounds.ms(name).values() for name in PARTS if self.rounds.steps
            },
            "pass_by_context": {
                str(context): {part.name: self._values(part) for part in parts}
                for context, parts in self.by_context.items()
            },
            "pass_by_rows": {str(rows): self._values(part) for rows, part in self.by_rows.items()},
            "prefill_tokens_per_s": {str(c): s.values() for c, s in self.prefill.items()},
            "prefill_prompt_tokens": self.prompt_len,
            "prefill_best_chunk": self.best_chunk,
            "first_token": self.first_token.values(),
        }

    def _values(self, part: Part) -> dict[str, object]:
        limit = part.limit_ms(self.bandwidth.median)
        return {
            "ms": part.time_ms.values(),
            "bytes": part.num_bytes,
            "limit_ms": limit,
            "times_the_limit": part.of_limit(self.bandwidth.median),
            "how": part.how,
        }

    def _table(self, title: str, parts: Sequence[tuple[str, Part]]) -> list[str]:
        rows: list[Row] = [(title, "ms", "must read", "limit", "x of the limit", "how")]
        for name, part in parts:
            limit = part.limit_ms(self.bandwidth.median)
            times = part.of_limit(self.bandwidth.median)
            rows.append(
                (
                    name,
                    number(part.time_ms),
                    f"{part.num_bytes / 1e6:.4g} MB",
                    f"{limit:.3g} ms",
                    "-" if times is None else f"{times:.2f}",
                    part.how,
                )
            )
        return columns(rows)

    def _round_table(self) -> list[str]:
        if not self.rounds.steps:
            return ["no round could be timed: raise --max-tokens"]
        whole = self.rounds.step_ms
        rows: list[Row] = [(f"{len(self.rounds.steps)} rounds of the engine", "ms", "share")]
        for part in PARTS:
            spread = self.rounds.ms(part)
            rows.append((part, number(spread), f"{100 * spread.median / whole.median:.1f} %"))
        return columns([*rows, ("whole round", number(whole), "")])

    def _prefill_table(self) -> list[str]:
        rows: list[Row] = [(f"prefill of {self.prompt_len} tokens, by chunk", "tokens/s")]
        rows += [(f"{chunk} tokens", number(speed)) for chunk, speed in self.prefill.items()]
        best = f"most tokens/s: scheduler.prefill_chunk_tokens={self.best_chunk}"
        return [*columns(rows), best]
