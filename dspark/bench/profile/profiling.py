"""Measures a profile: parts of a round at given shapes, whole rounds, and prefill."""

from collections.abc import Mapping

import torch

from dspark.bench.profile.bandwidth import read_sweep
from dspark.bench.profile.decode_steps import DecodeSteps, record_decode_steps
from dspark.bench.profile.first_token import measure_first_token
from dspark.bench.profile.pass_cases import PassCases
from dspark.bench.profile.profile import ALONE, DIFFERENCE, WHOLE, Part, Profile
from dspark.bench.profile.timing import difference_ms, ms, seconds_in_turns
from dspark.bench.profile.traffic import DraftTraffic, TargetTraffic
from dspark.bench.report.statistics import Spread
from dspark.bench.workloads.interleaving import Report
from dspark.bench.workloads.timing import Case, Samples
from dspark.bench.workloads.trial import Workload
from engine.build import Built

CONTEXTS = (128, 1024, 4096, 8192)  # tokens before the window
ROW_COUNTS = (1, 2, 4, 6, 8, 16, 32)
CHUNKS = (64, 128, 256, 512)
NUM_REPORTS = 6

_CONTEXT = 256  # of the parts and of the row counts
_PROMPT = 512  # tokens of the prefill
_SWEEP = "read sweep"


def contexts_within(room: int) -> list[int]:
    """Return the CONTEXTS that fit; one that fits without its window is cut."""
    most = max(ROW_COUNTS)
    return [min(context, room) for context in CONTEXTS if context <= room + most] or [room]


def measure_profile(
    built: Built, workload: Workload, *, turns: int, device: torch.device, report: Report
) -> Profile:
    """Time whole rounds, then the parts. Reports NUM_REPORTS times.

    Raises RequestRejected for a request that cannot be served.
    """
    built.engine.flush_cache()
    report("rounds of the engine")
    rounds = record_decode_steps(built, workload)
    built.engine.flush_cache()  # the cases below overwrite the pool's pages
    return _Profiler(built, turns, device).profile(rounds, report)


class _Profiler:
    """Times the cases of a profile and computes what they must read."""

    def __init__(self, built: Built, turns: int, device: torch.device) -> None:
        self._built = built
        self._passes = PassCases(built, device)
        self._turns = turns
        self._device = device
        self._target = TargetTraffic.of(built)
        self._draft = DraftTraffic.of(built)
        self._window = 1 + built.proposer.block_size
        self._context = min(_CONTEXT, self._room)
        self._bandwidths: list[float] = []
        weights = built.memory.target_bytes
        self._sweep, self._sweep_bytes = read_sweep(weights, device)

    def profile(self, rounds: DecodeSteps, report: Report) -> Profile:
        report("parts of a round")
        parts = self._parts()
        report("target passes by context")
        by_context = self._by_context()
        report("target passes by rows")
        by_rows = self._by_rows()
        report("prefill by chunk size")
        prompt_len = min(_PROMPT, self._passes.max_tokens)
        prefill = self._prefill(prompt_len)
        report("time to first token")
        first_token = measure_first_token(self._built, turns=self._few_turns, device=self._device)
        return Profile(
            prefill=prefill,
            first_token=first_token,
            bandwidth=Spread.of(self._bandwidths),
            num_threads=torch.get_num_threads(),
            context=self._context,
            window=self._window,
            parts=tuple(parts),
            rounds=rounds,
            by_context=by_context,
            by_rows=by_rows,
            prompt_len=prompt_len,
        )

    @property
    def _room(self) -> int:
        """Return the longest context that leaves room for the widest window."""
        return self._passes.max_tokens - max(*ROW_COUNTS, self._window)

    @property
    def _few_turns(self) -> int:
        """Turns of cases that take as long as many passes."""
        return max(2, self._turns // 5)

    def _parts(self) -> list[Part]:
        passes, context, window = self._passes, self._context, self._window
        cases = {
            "pass": passes.target_pass(context=context, rows=window),
            "no head": passes.target_pass(context=context, rows=window, has_logits=False),
            "no context": passes.target_pass(context=0, rows=window),
        }
        if self._draft is not None:
            cases |= {
                "draft": passes.draft_round(context=context),
                "draft, no context": passes.draft_round(context=0),
                "draft head": passes.draft_head(),
                "write 1": passes.context_write(rows=1),
                "write all": passes.context_write(rows=window),
            }
            chainless = passes.draft_pass(context=context)
            if chainless is not None:
                cases["draft, no chain"] = chainless
        timed = self._timed(cases)
        return [*self._target_parts(timed), *self._draft_parts(timed)]

    def _target_parts(self, timed: Samples) -> list[Part]:
        traffic, kv = self._target, self._context * self._target.kv_per_token
        whole, headless, short = timed["pass"], timed["no head"], timed["no context"]
        rest = [w - (w - h) - (w - s) for w, h, s in zip(whole, headless, short, strict=True)]
        return [
            Part(
                f"target forward, {self._window} rows",
                ms(whole),
                traffic.layers + traffic.head + kv,
                WHOLE,
            ),
            Part("  LM head", difference_ms(whole, headless), traffic.head, DIFFERENCE),
            Part("  attention to the context", difference_ms(whole, short), kv, DIFFERENCE),
            Part("  layers besides", ms(rest), traffic.layers, DIFFERENCE),
        ]

    def _draft_parts(self, timed: Samples) -> list[Part]:
        traffic = self._draft
        if traffic is None:
            return []
        kv = self._context * traffic.kv_per_token
        draft, short = timed["draft"], timed["draft, no context"]
        return [
            Part(
                "draft round: block, head and chain",
                ms(draft),
                traffic.layers + traffic.head + traffic.chain + kv,
                WHOLE,
            ),
            Part("  draft attention to the context", difference_ms(draft, short), kv, DIFFERENCE),
            Part("  draft LM head", ms(timed["draft head"]), traffic.head, ALONE),
            *self._block_and_chain(timed, traffic),
            Part(
                f"context write of 1 token ({self._built.proposer.context_kv_path})",
                ms(timed["write 1"]),
                traffic.context_write,
                WHOLE,
            ),
            Part(
                f"context write of {self._window} tokens",
                ms(timed["write all"]),
                traffic.context_write,
                WHOLE,
            ),
        ]

    def _block_and_chain(self, timed: Samples, traffic: DraftTraffic) -> list[Part]:
        """Return block and chain as two parts, or as one if a graph or kernel covers both."""
        draft, short, head = timed["draft"], timed["draft, no context"], timed["draft head"]
        chainless = timed.get("draft, no chain")
        if chainless is None:
            both = traffic.layers + traffic.chain
            name = "  draft block and chain besides"
            return [Part(name, difference_ms(short, head), both, DIFFERENCE)]
        chain = [d - c for d, c in zip(draft, chainless, strict=True)]
        block = [s - h - c for s, h, c in zip(short, head, chain, strict=True)]
        return [
            Part("  Markov chain and confidences", ms(chain), traffic.chain, DIFFERENCE),
            Part("  draft block besides", ms(block), traffic.layers, DIFFERENCE),
        ]

    def _by_context(self) -> dict[int, tuple[Part, ...]]:
        contexts = contexts_within(self._room)
        widths = sorted({1, self._window})
        timed = self._timed(
            {
                f"{context}/{rows}": self._passes.target_pass(context=context, rows=rows)
                for context in contexts
                for rows in widths
            }
        )
        return {
            context: tuple(self._pass(context, rows, timed[f"{context}/{rows}"]) for rows in widths)
            for context in contexts
        }

    def _by_rows(self) -> dict[int, Part]:
        context = self._context
        timed = self._timed(
            {str(n): self._passes.target_pass(context=context, rows=n) for n in ROW_COUNTS}
        )
        return {rows: self._pass(context, rows, timed[str(rows)]) for rows in ROW_COUNTS}

    def _pass(self, context: int, rows: int, seconds: list[float]) -> Part:
        traffic = self._target
        read = traffic.layers + traffic.head + context * traffic.kv_per_token
        return Part("1 row" if rows == 1 else f"{rows} rows", ms(seconds), read, WHOLE)

    def _prefill(self, prompt_len: int) -> dict[int, Spread]:
        chunks = [chunk for chunk in CHUNKS if chunk <= prompt_len] or [prompt_len]
        cases = {str(c): self._passes.prefill(num_tokens=prompt_len, chunk=c) for c in chunks}
        timed = seconds_in_turns(cases, turns=self._few_turns, device=self._device, warm_up=1)
        return {c: Spread.of([prompt_len / s for s in timed[str(c)]]) for c in chunks}

    def _timed(self, cases: Mapping[str, Case]) -> Samples:
        """Time the cases together with a read sweep, so that the bandwidth is of the same time."""
        both = {**cases, _SWEEP: self._sweep}
        timed = seconds_in_turns(both, turns=self._turns, device=self._device)
        self._bandwidths += [self._sweep_bytes / seconds for seconds in timed[_SWEEP]]
        return timed
