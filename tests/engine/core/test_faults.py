"""A fault ends the request that caused it; other requests get the tokens of a calm run."""

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from draft import DSparkProposer
from engine import (
    EngineSamplingParams,
    Finish,
    FinishReason,
    Request,
    RequestFailed,
    RequestRejected,
)
from engine.build import Built
from engine.core.offline import drive
from engine.runner.target_model import TargetModel
from engine.sampling import logit_bias, logprobs, min_tokens, penalties, verify_step
from engine.sampling.logit_rows import LogitRows
from engine.sampling.token_masks import EVERYTHING
from tests.support.engine.running import prompts, run_all
from tests.support.engine.tiny_models import VOCAB, tiny_engine, tiny_target, write_tiny_draft
from tests.support.engine.workers import collect_events, greedy_request, running_worker

NUM_REQUESTS = 8
CULPRIT = "3"
NEW_TOKENS = 24

Answers = dict[str, tuple[list[int], Finish]]


@pytest.fixture(scope="module")
def draft_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_draft(tmp_path_factory.mktemp("draft"))


class Scanner:
    """Finds no stop; raises at its n-th token."""

    def __init__(self, breaks_at: int | None = None) -> None:
        self._left = breaks_at

    def feed(self, token_id: int) -> str | None:
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                raise ZeroDivisionError("the scanner broke")
        return None


class Mask:
    """Allows every token; raises at its n-th fill or commit."""

    def __init__(self, *, fill: int = 0, commit: int = 0) -> None:
        self._left = {"fill": fill, "commit": commit}

    def fill(self, draft_ids: Any, words: Any) -> None:
        self._count("fill")
        words[:] = EVERYTHING

    def commit(self, token_id: int) -> bool:
        self._count("commit")
        return False

    def _count(self, name: str) -> None:
        self._left[name] -= 1
        if self._left[name] == 0:
            raise ZeroDivisionError(f"the mask broke in {name}")


class EmptyMask(Mask):
    """Allows no token from the start."""

    def fill(self, draft_ids: Any, words: Any) -> None:
        words[:] = 0


OPTIONS: dict[str, Any] = {
    "logit_bias": ((5, 2.5), (9, -3.0)),
    "repetition_penalty": 1.2,
    "presence_penalty": 0.3,
    "min_new_tokens": 20,
    "num_logprobs": 2,
    "prompt_logprobs_from": 1,
}


def requests(**of_culprit: Any) -> list[Request]:
    """Eight requests with every kind of option; half greedy, half seeded."""
    made = []
    for i, prompt in enumerate(prompts(NUM_REQUESTS, vocab=VOCAB)):
        params = EngineSamplingParams(
            max_new_tokens=NEW_TOKENS,
            temperature=0.8 * (i % 2),
            seed=i,
            stop_token_ids=frozenset({2}),
            **OPTIONS,
        )
        request = Request(str(i), tuple(prompt), params, Scanner(), Mask())
        made.append(dataclasses.replace(request, **of_culprit) if str(i) == CULPRIT else request)
    return made


def engine(draft_folder: Path | None, **settings: Any) -> Built:
    return tiny_engine(
        target=tiny_target(has_eos=True),
        draft_folder=draft_folder,
        **{"max_running_requests": NUM_REQUESTS, **settings},
    )


@pytest.fixture(scope="module")
def calm(draft_folder: Path) -> Answers:
    return run_all(engine(draft_folder), requests())


def check_others(answers: Answers, calm: Answers) -> None:
    """All others got what they get in a calm run. (run_all looks after the pages.)"""
    for name in calm:
        if name != CULPRIT:
            assert answers[name][0] == calm[name][0], name
            assert answers[name][1].reason is calm[name][1].reason


@contextmanager
def breaks(owner: Any, name: str, *, when: Callable[..., bool]) -> Iterator[None]:
    """Within the block the function raises for the arguments of which `when` is true."""
    function = getattr(owner, name)

    def broken(*args: Any, **kwargs: Any) -> Any:
        if when(*args, **kwargs):
            raise ZeroDivisionError(f"{name} broke")
        return function(*args, **kwargs)

    with patch.object(owner, name, broken):
        yield


def _plans_the_culprit(rows: LogitRows, **_: Any) -> bool:
    """Late enough that its request runs."""
    return any(
        window.scheduled.seq.request.request_id == CULPRIT and window.scheduled.seq.num_output >= 5
        for window in rows.windows
    )


PLACES: dict[str, Callable[[], tuple[dict[str, Any], AbstractContextManager[None]]]] = {
    "scanner, first token": lambda: ({"stop_scanner": Scanner(1)}, nullcontext()),
    "scanner, amid a round": lambda: ({"stop_scanner": Scanner(8)}, nullcontext()),
    "mask, first fill": lambda: ({"token_mask": Mask(fill=1)}, nullcontext()),
    "mask, fill along a draft": lambda: ({"token_mask": Mask(fill=9)}, nullcontext()),
    "mask, commit": lambda: ({"token_mask": Mask(commit=6)}, nullcontext()),
    "mask that allows nothing": lambda: ({"token_mask": EmptyMask()}, nullcontext()),
    "logit bias": lambda: ({}, breaks(logit_bias.LogitBias, "of", when=_plans_the_culprit)),
    "penalty": lambda: ({}, breaks(penalties.Penalties, "of", when=_plans_the_culprit)),
    "min_tokens": lambda: ({}, breaks(min_tokens.MinTokens, "of", when=_plans_the_culprit)),
    "penalty, on the device": lambda: (
        {"params": _params_of_culprit(presence_penalty=1.75)},
        breaks(
            penalties.Penalties,
            "apply",
            when=lambda self, *_: bool((self.presence == 1.75).any()),
        ),
    ),
    "logprobs": lambda: (
        {"params": _params_of_culprit(num_logprobs=7)},
        breaks(logprobs.LogprobPlan, "keep", when=lambda self, _: self.num_top == 7),
    ),
    "temperature": lambda: (
        {"params": _params_of_culprit(temperature=0.77)},
        breaks(
            verify_step,
            "target_probs",
            when=lambda _, params, **__: bool((params.temperatures == np.float32(0.77)).any()),
        ),
    ),
}


def _params_of_culprit(**changes: Any) -> EngineSamplingParams:
    return dataclasses.replace(requests()[int(CULPRIT)].params, **changes)


@pytest.mark.parametrize("has_draft", [True, False], ids=["draft", "no draft"])
@pytest.mark.parametrize("place", PLACES)
def test_a_fault_in_one_requests_code_ends_that_request_alone(
    place: str, has_draft: bool, draft_folder: Path, calm: Answers, caplog: pytest.LogCaptureFixture
) -> None:
    changes, fault = PLACES[place]()
    with fault:
        answers = run_all(engine(draft_folder if has_draft else None), requests(**changes))
    check_others(answers, calm if has_draft else run_all(engine(None), requests()))
    ids, finish = answers[CULPRIT]
    assert finish.reason is FinishReason.ERROR
    assert len(ids) == finish.num_output_tokens < NEW_TOKENS
    assert finish.error == f"internal error; the server's log has the details of request {CULPRIT}"
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert CULPRIT in record.getMessage()
    assert record.exc_info is not None, "a traceback belongs to it"


def test_a_fault_that_no_request_shows_alone_is_the_engines(draft_folder: Path) -> None:
    built = engine(draft_folder)
    is_batched = breaks(
        penalties.Penalties, "of", when=lambda rows, **_: len(rows.windows) == NUM_REQUESTS
    )
    with is_batched, pytest.raises(ZeroDivisionError, match="of broke"):
        run_all(built, requests())


def test_a_fault_of_the_target_is_the_engines(draft_folder: Path) -> None:
    built = engine(draft_folder)
    with (
        breaks(TargetModel, "forward", when=lambda *_: True),
        pytest.raises(ZeroDivisionError, match="forward broke"),
    ):
        run_all(built, requests())


class Recorder:
    """A step observer that raises in its n-th step."""

    def __init__(self, breaks_at: int) -> None:
        self._breaks_at = breaks_at
        self.num_steps = 0

    def record(self, *_: Any) -> None:
        self.num_steps += 1
        if self.num_steps == self._breaks_at:
            raise ZeroDivisionError("the observer broke")


def test_a_step_observer_that_raises_is_logged_once_and_removed(
    draft_folder: Path, calm: Answers, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(2)
    answers = run_all(engine(draft_folder, observer=recorder), requests())
    assert {name: ids for name, (ids, _) in answers.items()} == {
        name: ids for name, (ids, _) in calm.items()
    }
    assert recorder.num_steps == 2
    assert caplog.text.count("observer removed") == 1
    assert "the observer broke" in caplog.text


def test_an_offline_run_raises_what_its_observer_raised(draft_folder: Path) -> None:
    built = engine(draft_folder, observer=Recorder(2))
    with pytest.raises(ZeroDivisionError, match="the observer broke"):
        drive(built.engine, requests(), concurrency=4)


def test_an_offline_run_raises_for_a_request_that_fails(draft_folder: Path) -> None:
    with pytest.raises(RequestFailed, match=f"details of request {CULPRIT}"):
        drive(engine(draft_folder).engine, requests(stop_scanner=Scanner(2)), concurrency=4)


OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    MemoryError(),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes"),
]


@contextmanager
def memory_for(
    limit: int, owner: Any, name: str, size: Callable[..., int], error: Exception
) -> Iterator[list[int]]:
    """Within the block the method runs out of memory above `limit`; yields the sizes it saw."""
    method = getattr(owner, name)
    sizes: list[int] = []

    def limited(self: Any, *args: Any) -> Any:
        sizes.append(size(*args))
        if sizes[-1] > limit:
            raise error
        return method(self, *args)

    with patch.object(owner, name, limited):
        yield sizes


def _num_sequences(batch: Any) -> int:
    return len(batch.query_lens)


def _num_rows(hidden: Any, positions: Any, slots: Any) -> int:
    return len(slots)


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda error: type(error).__name__)
def test_a_step_that_does_not_fit_is_repeated_without_its_youngest(
    error: Exception, draft_folder: Path, calm: Answers
) -> None:
    built = engine(draft_folder)
    with memory_for(5, TargetModel, "forward", _num_sequences, error) as sizes:
        answers = run_all(built, requests())
    assert {n: ids for n, (ids, _) in answers.items()} == {n: ids for n, (ids, _) in calm.items()}
    assert built.engine.snapshot().num_preemptions > 0
    assert 5 in sizes
    too_large = [size for size in sizes if size > 5]
    assert len(too_large) <= NUM_REQUESTS, "what did not fit is not tried in every step"


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda error: type(error).__name__)
def test_context_that_does_not_fit_makes_the_sequences_start_again(
    error: Exception, draft_folder: Path, calm: Answers
) -> None:
    small = [dataclasses.replace(r, prompt_ids=r.prompt_ids[:8]) for r in requests()]
    undisturbed = run_all(engine(draft_folder), small)
    built = engine(draft_folder)
    with memory_for(12, DSparkProposer, "write_context", _num_rows, error) as sizes:
        answers = run_all(built, small)
    assert max(sizes) > 12
    assert {n: ids for n, (ids, _) in answers.items()} == {
        n: ids for n, (ids, _) in undisturbed.items()
    }
    assert built.engine.snapshot().num_preemptions > 0


@pytest.mark.parametrize(
    ("owner", "name", "size"),
    [
        (TargetModel, "forward", lambda batch: len(batch.token_ids)),
        (DSparkProposer, "write_context", _num_rows),
    ],
    ids=["the pass", "the context write"],
)
def test_a_request_that_alone_does_not_fit_fails_and_others_go_on(
    owner: Any, name: str, size: Callable[..., int], draft_folder: Path
) -> None:
    made = [dataclasses.replace(r, prompt_ids=r.prompt_ids[:6]) for r in requests()]
    made[3] = dataclasses.replace(made[3], prompt_ids=tuple(range(3, 33)))
    expected = run_all(engine(draft_folder), [r for r in made if r.request_id != CULPRIT])
    with memory_for(20, owner, name, size, MemoryError()):
        answers = run_all(engine(draft_folder), made)
    _, finish = answers.pop(CULPRIT)
    assert finish.reason is FinishReason.ERROR
    assert finish.error is not None
    assert "do not fit" in finish.error
    assert {n: ids for n, (ids, _) in answers.items()} == {
        n: ids for n, (ids, _) in expected.items()
    }


def test_a_profiler_that_raises_is_refused_and_the_engine_lives(
    draft_folder: Path, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with running_worker(draft_folder) as worker:
            with (
                patch("engine.observability.profiler.profile", side_effect=RuntimeError("busy")),
                pytest.raises(RequestRejected, match="busy"),
            ):
                await worker.start_profile(str(tmp_path))
            assert worker.is_healthy()
            assert len(await collect_events(worker, greedy_request())) > 0

    asyncio.run(scenario())
