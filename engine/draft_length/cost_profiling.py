"""Measures target and draft passes of a few sizes at start, for the draft budget.

The passes compute on arbitrary numbers in an idle pool's pages; their time does not depend on them.
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

_TURNS = 3  # the minimum of so many runs counts: other work only makes a pass longer
_LIMIT_S = 1.5  # afterwards only the sizes that must be measured are started
_LONG_CONTEXT = 1024  # tokens, where the pool and the target have room for them
_MOST_ROWS = 128  # of a measured pass, where none are replayed
_PARAMS = EngineSamplingParams(max_new_tokens=1 << 20)

_Case = tuple[str, int]  # the kind of pass, and its size


@dataclass(frozen=True, slots=True)
class CostRig:
    """Runs the engine's passes while no sequence is running.

    capture_sizes is empty without replayed passes; width is the most rows of a verify window.
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
        """Tokens of context; a replayed window needs keys for each of its rows."""
        return self.width

    @property
    def long_context(self) -> int:
        """Tokens of context; equal to the short one where there is no room for more."""
        scratch = max(self.width, self.proposer.num_slots)
        room = min(self.num_pages * self.page_size, self.max_len) - scratch - 1
        return max(self.short_context, min(_LONG_CONTEXT, room))

    def run_pass(self, num_rows: int, context: int) -> None:
        """Run a step's pass over so many rows, in as few verify windows as hold them."""
        whole, rest = divmod(num_rows, self.width)
        self._run_windows([self.width] * whole + [rest] * (rest > 0), context)

    def run_singles(self, num_sequences: int, context: int) -> None:
        """Run the pass of a step in which none of so many sequences has a draft."""
        self._run_windows([1] * num_sequences, context)

    def _run_windows(self, windows: Sequence[int], context: int) -> None:
        plan = self._plan(windows, context)
        vocab_size = self.target.vocab_size
        options = StepOptions.of(plan, vocab_size=vocab_size, device=self.device)
        batch = build_batch(plan, None, device=self.device)
        output = self.target.forward(batch)
        verify_step(plan, batch, None, output, None, options)
        if output.has_written_context:
            return
        (rows,) = upload(
            [committed_rows([(scheduled, 1) for scheduled in plan.scheduled_seqs])], self.device
        )
        self.proposer.write_context(
            output.aux_hidden[rows], batch.positions[rows], batch.slot_mapping[rows]
        )

    def run_draft(self, num_sequences: int, context: int) -> None:
        """Run a draft pass: a block for each of so many sequences."""
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
        """Make a sequence; its pages are shared only where the pool is too small."""
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

    A turn runs every size once, so a short disturbance spoils no size in all of its turns. It takes
    little longer than limit_s, or than the few sizes that are needed.
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
    """Return the cases that are needed, and those that refine the costs."""
    width, most = rig.width, rig.max_running * rig.width
    if rig.capture_sizes:
        needed, finer = [capture_size * width for capture_size in rig.capture_sizes], set[int]()
    else:
        most = min(most, max(_MOST_ROWS, width))
        needed = sorted({1, width, min(4 * width, most)})
        finer = {*(1 << n for n in range(6)), 2 * width, most}
    counts = list(rig.capture_sizes) or [1 << n for n in range(rig.max_running.bit_length())]
    drafts = [("draft", count) for count in counts] + [("draft far", 1)]
    if rig.proposer.block_size == 0:
        drafts = []
    far = [("pass far", width), ("single far" if rig.capture_sizes else "pass far", 1)]
    passes = [("pass", size) for size in needed] + [
        ("single", capture_size) for capture_size in rig.capture_sizes
    ]
    finer_passes = [("pass", size) for size in sorted(finer - set(needed)) if size <= most]
    return [*passes, *drafts[:1]], [*drafts[1:-1], *far, *drafts[-1:], *finer_passes]


def _timed(rig: CostRig, case: _Case, clock: Callable[[], float]) -> float:
    what, size = case
    runs = {"pass": rig.run_pass, "single": rig.run_singles, "draft": rig.run_draft}
    run = runs[what.removesuffix(" far")]
    context = rig.long_context if what.endswith(" far") else rig.short_context
    return seconds_of(lambda: run(size, context), rig.device, clock=clock)


def _costs(rig: CostRig, seconds: dict[_Case, float]) -> StepCosts:
    added_context = rig.long_context - rig.short_context

    def per_token(what: str, size: int) -> float:
        """Return the seconds that a token of context adds to the case."""
        far = seconds.get((f"{what} far", size))
        near = seconds.get((what, size))
        if added_context == 0 or far is None or near is None:
            return 0.0
        return max(0.0, far - near) / added_context

    def curve(kind: str) -> Curve:
        return Curve.through({size: s for (what, size), s in seconds.items() if what == kind})

    has_draft = rig.proposer.block_size > 0

    window = per_token("pass", rig.width)
    one_row = per_token("single" if rig.capture_sizes else "pass", 1)
    per_row = max(0.0, window - one_row) / max(1, rig.width - 1)
    return StepCosts(
        passes=curve("pass"),
        drafts=curve("draft") if has_draft else Curve((1,), (0.0,)),
        singles=curve("single") if rig.capture_sizes else None,
        context_per_sequence=max(0.0, one_row - per_row),
        context_per_row=per_row,
        context_per_draft=per_token("draft", 1),
        capture_sizes=rig.capture_sizes,
        width=rig.width,
    )
