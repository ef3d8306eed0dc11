"""Times target and draft passes of a few sizes at start, for the draft budget to choose by.

What is computed is nonsense, on an idle pool's own pages; time does not depend on the numbers.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from draft import Proposer
from engine.api import EngineSamplingParams, Request
from engine.draft_length.cost_model import Curve, StepCosts
from engine.platform.device_timer import seconds_of
from engine.runner.batch import build_batch, build_block_request, committed_rows
from engine.runner.target_model import Target
from engine.runner.transfer import upload
from engine.sampling.verify_step import StepOptions, verify_step
from engine.scheduler.plan import ScheduledSequence, StepPlan
from engine.scheduler.sequence import SequenceState
from kv_pool import PageTable

_TURNS = 3  # the least of so many counts: whatever disturbs a pass makes it longer
_LIMIT_S = 1.5  # nothing begins after this, but for sizes that must be measured
_LONG_CONTEXT = 1024  # tokens, where the pool and the target have them
_MOST_ROWS = 128  # of a measured pass, where none are replayed
_PARAMS = EngineSamplingParams(max_new_tokens=1 << 20)

_Case = tuple[str, int]  # what, and its size


@dataclass(frozen=True, slots=True)
class CostRig:
    """The engine's own passes, to be run while no sequence does.

    tiers are of replayed passes, empty without any; width is the rows of a full verify window.
    """

    target: Target
    proposer: Proposer
    num_pages: int
    page_size: int
    max_len: int  # tokens of one sequence
    max_running: int  # sequences
    width: int
    capture_sizes: tuple[int, ...]
    device: torch.device

    @property
    def short_context(self) -> int:
        """A replayed window wants keys for each of its rows."""
        return self.width

    @property
    def long_context(self) -> int:
        """The short one where there is no room for more."""
        scratch = max(self.width, self.proposer.num_slots)
        room = min(self.num_pages * self.page_size, self.max_len) - scratch - 1
        return max(self.short_context, min(_LONG_CONTEXT, room))

    def run_pass(self, num_rows: int, context: int) -> None:
        """Verify windows of so many rows, as few as hold them, and what a step does around."""
        whole, rest = divmod(num_rows, self.width)
        self._run_windows([self.width] * whole + [rest] * (rest > 0), context)

    def run_singles(self, num_sequences: int, context: int) -> None:
        """The pass of a step in which none of so many sequences brings a draft."""
        self._run_windows([1] * num_sequences, context)

    def _run_windows(self, windows: Sequence[int], context: int) -> None:
        plan = self._plan(windows, context)
        vocab_size = self.target.vocab_size
        options = StepOptions.of(plan, vocab_size=vocab_size, device=self.device)
        batch = build_batch(plan, None, device=self.device)
        output = self.target.forward(batch)
        verify_step(plan, batch, None, output.logits, None, options)
        (rows,) = upload(
            [committed_rows([(scheduled, 1) for scheduled in plan.scheduled_seqs])], self.device
        )
        self.proposer.write_context(
            output.aux_hidden[rows], batch.positions[rows], batch.slot_mapping[rows]
        )

    def run_draft(self, num_sequences: int, context: int) -> None:
        """A block for each of so many sequences."""
        plan = self._plan([self.width] * num_sequences, context)
        num_slots = self.proposer.num_slots
        self.proposer.propose(
            build_block_request(plan.scheduled_seqs, None, num_slots=num_slots, device=self.device)
        )

    def _plan(self, windows: Sequence[int], context: int) -> StepPlan:
        return StepPlan(
            tuple(
                ScheduledSequence(
                    seq=self._sequence(i, context + 1),
                    start=context,
                    stop=context + 1,
                    num_drafts=rows - 1,
                    samples=True,
                )
                for i, rows in enumerate(windows)
            )
        )

    def _sequence(self, index: int, length: int) -> SequenceState:
        """Its pages are its own as far as there are enough."""
        count = -(-(length + max(self.width, self.proposer.num_slots)) // self.page_size)
        pages = [(index * count + i) % self.num_pages for i in range(count)]
        return SequenceState(
            request=Request("cost", (0,), _PARAMS),
            arrival=index,
            seed=0,
            arrived_at=0.0,
            table=PageTable(self.page_size, pages),
            token_ids=[0] * length,
        )


def measure_costs(
    rig: CostRig, *, limit_s: float = _LIMIT_S, clock: Callable[[], float] = time.perf_counter
) -> StepCosts:
    """Run passes of several sizes in turns, and keep the least seconds of each.

    Each turn is one of every size, so that a while in which others compute spoils no size in all
    of its turns. Takes little longer than limit_s, or than the few sizes that are needed take.
    """
    needed, others = _cases(rig)
    seconds: dict[_Case, float] = {}
    started = clock()
    with torch.inference_mode():
        for case in _TURNS * [*needed, *others]:
            is_missing = case in needed and case not in seconds
            if is_missing or clock() - started < limit_s:
                found = _timed(rig, case, clock)
                seconds[case] = min(found, seconds.get(case, found))
    return _costs(rig, seconds)


def _cases(rig: CostRig) -> tuple[list[_Case], list[_Case]]:
    """Those without which nothing can be said, and those that make it more exact."""
    width, most = rig.width, rig.max_running * rig.width
    if rig.capture_sizes:
        needed, finer = [capture_size * width for capture_size in rig.capture_sizes], set[int]()
    else:
        most = min(most, max(_MOST_ROWS, width))
        needed = sorted({1, width, min(4 * width, most)})
        finer = {*(1 << n for n in range(6)), 2 * width, most}
    counts = list(rig.capture_sizes) or [1 << n for n in range(rig.max_running.bit_length())]
    drafts = [("draft", count) for count in counts]
    far = [("pass far", width), ("single far" if rig.capture_sizes else "pass far", 1)]
    passes = [("pass", size) for size in needed] + [
        ("single", capture_size) for capture_size in rig.capture_sizes
    ]
    finer_passes = [("pass", size) for size in sorted(finer - set(needed)) if size <= most]
    return [*passes, drafts[0]], [*drafts[1:], *far, ("draft far", 1), *finer_passes]


def _timed(rig: CostRig, case: _Case, clock: Callable[[], float]) -> float:
    what, size = case
    runs = {"pass": rig.run_pass, "single": rig.run_singles, "draft": rig.run_draft}
    run = runs[what.removesuffix(" far")]
    context = rig.long_context if what.endswith(" far") else rig.short_context
    return seconds_of(lambda: run(size, context), rig.device, clock=clock)


def _costs(rig: CostRig, seconds: dict[_Case, float]) -> StepCosts:
    far = rig.long_context - rig.short_context

    def per_token(what: str, size: int) -> float:
        """Seconds that a token of context adds to all rows of the case."""
        longer = seconds.get((f"{what} far", size))
        near = seconds.get((what, size))
        if far == 0 or longer is None or near is None:
            return 0.0
        return max(0.0, longer - near) / far

    def curve(kind: str) -> Curve:
        return Curve.through({size: s for (what, size), s in seconds.items() if what == kind})

    window = per_token("pass", rig.width)
    one_row = per_token("single" if rig.capture_sizes else "pass", 1)
    per_row = max(0.0, window - one_row) / max(1, rig.width - 1)
    return StepCosts(
        passes=curve("pass"),
        drafts=curve("draft"),
        singles=curve("single") if rig.capture_sizes else None,
        context_per_sequence=max(0.0, one_row - per_row),
        context_per_row=per_row,
        context_per_draft=per_token("draft", 1),
        capture_sizes=rig.capture_sizes,
        width=rig.width,
    )
