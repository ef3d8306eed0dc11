"""A draft that is launched before the host reads the verdict changes no token."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from draft import BlockRequest, DraftBlock
from engine import EngineSamplingParams, FinishReason, Request
from engine.build import Built
from engine.core.draft_ahead import DraftAhead
from engine.cuda_graphs import GraphedProposer
from engine.sampling import draw_groups, verify_step
from kv_pool.attention.fixed_reference import FixedReference
from tests.support.engine.option_cases import ByParity
from tests.support.engine.recorded import graphed_engine, taped
from tests.support.engine.running import generate_alone, greedy_requests, prompts, run_all
from tests.support.engine.tiny_models import VOCAB, tiny_engine, tiny_target, write_tiny_draft

NEW_TOKENS = 24
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 1.0},
    "filtered": {"temperature": 0.8, "top_k": 20, "top_p": 0.9},
    "short drafts": {"num_draft_tokens": 2},
    "no drafts": {"num_draft_tokens": 0},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.5},
    "logprobs": {"num_logprobs": 2, "prompt_logprobs_from": 0},
    "short": {"max_new_tokens": 3},
}
SETTINGS: list[dict[str, Any]] = [
    {},
    {"lookup": "on", "lookup_min_match": 1},
    {"page_size": 1, "num_pages": 512},
    {"num_pages": 24},
    {"max_running_requests": 3, "prefill_chunk_tokens": 5},
    {"confidence_threshold": 0.3},
    {"stacked_context_kv": "off"},
]


@pytest.fixture(scope="module")
def draft_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_draft(tmp_path_factory.mktemp("draft"))


def mixed_requests() -> list[Request]:
    """One request of each kind, and one with a grammar."""
    params = [
        EngineSamplingParams(**{"max_new_tokens": NEW_TOKENS, "seed": i, **kind})
        for i, kind in enumerate(KINDS.values())
    ]
    given = prompts(len(params) + 1, vocab=VOCAB)
    requests = [
        Request(name, tuple(prompt), each)
        for name, prompt, each in zip(KINDS, given, params, strict=False)
    ]
    masked = EngineSamplingParams(max_new_tokens=NEW_TOKENS)
    return [*requests, Request("grammar", tuple(given[-1]), masked, token_mask=ByParity())]


def ids_of(built: Built, requests: list[Request]) -> dict[str, list[int]]:
    return {name: ids for name, (ids, _) in run_all(built, requests).items()}


def ahead_of(built: Built) -> DraftAhead:
    ahead = built.engine._ahead
    assert ahead is not None
    return ahead


@contextmanager
def logged(built: Built) -> Iterator[list[str]]:
    """Log the draft passes, with the number of sequences, and the waits for the device."""
    log: list[str] = []
    propose, download = GraphedProposer.propose, verify_step.download

    def logging_propose(self: GraphedProposer, request: BlockRequest) -> DraftBlock:
        kind = "draft" if request.least_context_lens is None else "ahead"
        log.append(f"{kind} {len(request.context_lens)}")
        return propose(self, request)

    def logging_download(tensors: Any) -> Any:
        log.append("wait")
        return download(tensors)

    with (
        patch.object(GraphedProposer, "propose", logging_propose),
        patch.object(verify_step, "download", logging_download),
    ):
        yield log


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_mixed_requests_get_the_tokens_of_an_engine_that_drafts_late(
    settings: dict[str, Any], draft_folder: Path
) -> None:
    ahead = graphed_engine(draft_folder=draft_folder, **settings)
    late = graphed_engine(draft_folder=draft_folder, **settings)
    late.engine._ahead = None
    eager = tiny_engine(draft_folder=draft_folder, native_kernels="off", **settings)
    found = ids_of(ahead, mixed_requests())
    assert found == ids_of(late, mixed_requests())
    assert found == ids_of(eager, mixed_requests())
    assert ahead_of(ahead).num_used > 0


def test_every_draft_but_the_first_is_launched_before_the_host_waits(draft_folder: Path) -> None:
    built = graphed_engine(draft_folder=draft_folder)
    requests = [
        replace(each, params=replace(each.params, ignore_eos=True))
        for each in greedy_requests(prompts(3, vocab=VOCAB, low=9, high=10), NEW_TOKENS)
    ]
    with logged(built) as log:
        ids_of(built, requests)
    assert log[:3] == ["ahead 3", "wait", "ahead 3"]  # the first follows the prompts
    assert not [entry for entry in log if entry.startswith("draft")]
    ahead = ahead_of(built)
    assert ahead.num_used >= ahead.num_launched - 3 * len(requests)


def test_sequences_that_need_the_host_leave_the_launch_and_the_others_stay(
    draft_folder: Path,
) -> None:
    built = graphed_engine(draft_folder=draft_folder)
    given = prompts(3, vocab=VOCAB, low=9, high=10)
    params = EngineSamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True)
    requests = [
        Request("greedy", tuple(given[0]), params),
        Request("grammar", tuple(given[1]), params, token_mask=ByParity()),
        Request("plain", tuple(given[2]), replace(params, num_draft_tokens=0)),
    ]
    with logged(built) as log:
        ids_of(built, requests)
    assert "ahead 1" in log
    assert "draft 1" in log  # the grammar's
    assert not {"ahead 2", "ahead 3", "draft 2", "draft 3"} & set(log)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_verdict_that_is_repeated_discards_its_block_and_keeps_its_distributions(
    temperature: float, draft_folder: Path
) -> None:
    """Two of the likeliest tokens are seldom enough for top_p, so most verdicts are repeated."""

    def requests() -> list[Request]:
        exact = EngineSamplingParams(max_new_tokens=NEW_TOKENS, temperature=temperature, seed=3)
        repeated = replace(exact, temperature=0.7, top_p=0.95)
        return [
            Request(str(i), tuple(prompt), repeated if i else exact)
            for i, prompt in enumerate(prompts(4, vocab=VOCAB))
        ]

    with patch.object(draw_groups, "_SIZES", (2, 3)):
        built = graphed_engine(draft_folder=draft_folder)
        discard = patch.object(DraftAhead, "discard", autospec=True, side_effect=DraftAhead.discard)
        with discard as discarded:
            found = ids_of(built, requests())
        assert discarded.call_count > 3
        assert ahead_of(built).num_used > 0
    eager = tiny_engine(draft_folder=draft_folder, native_kernels="off")
    assert found == ids_of(eager, requests())


def test_the_draft_reads_valid_context_after_a_discarded_block(draft_folder: Path) -> None:
    """The context that a discarded block has overwritten is written again, bit for bit."""
    (prompt,) = prompts(1, vocab=VOCAB, low=20, high=21)
    params = EngineSamplingParams(max_new_tokens=NEW_TOKENS, temperature=0.7, top_p=0.95, seed=3)

    def context_of(built: Built) -> torch.Tensor:
        with torch.inference_mode():
            built.engine.add(Request("a", tuple(prompt), params))
            for _ in range(5):
                built.engine.step()
            (seq,) = built.engine._scheduler._running
            slots = seq.table.slots(0, seq.kv_len)
            return built.pool.draft_keys[:, torch.from_numpy(slots)].clone()

    with patch.object(draw_groups, "_SIZES", (2, 3)):
        ahead = context_of(graphed_engine(draft_folder=draft_folder))
        late = graphed_engine(draft_folder=draft_folder)
        late.engine._ahead = None
        torch.testing.assert_close(ahead, context_of(late), rtol=0, atol=1e-6)


class _Scanner:
    def __init__(self, breaks_at: int) -> None:
        self._left = breaks_at

    def feed(self, token_id: int) -> str | None:
        self._left -= 1
        if self._left == 0:
            raise ZeroDivisionError("the scanner broke")
        return None


def _out_of_memory_once(built: Built) -> Callable[..., Any]:
    download, calls = verify_step.download, [0]

    def failing(tensors: Any) -> Any:
        calls[0] += 1
        if calls[0] == 4:
            raise torch.OutOfMemoryError("out of memory")
        return download(tensors)

    return failing


def test_a_fault_and_a_lack_of_memory_after_the_launch_change_no_other_token(
    draft_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = prompts(4, vocab=VOCAB)
    requests = greedy_requests(given, NEW_TOKENS)
    requests[1] = replace(requests[1], stop_scanner=_Scanner(7))
    built = graphed_engine(draft_folder=draft_folder)
    with patch.object(verify_step, "download", _out_of_memory_once(built)):
        found = run_all(built, requests)
    assert found["1"][1].reason is FinishReason.ERROR
    for i in (0, 2, 3):
        assert found[str(i)][0] == generate_alone(tiny_target(), given[i], NEW_TOKENS)
    assert ahead_of(built).num_used > 0
    assert "out of memory: the step is repeated" in caplog.text


def test_an_abort_between_steps_leaves_the_other_blocks(draft_folder: Path) -> None:
    given = prompts(3, vocab=VOCAB, low=9)
    built = graphed_engine(draft_folder=draft_folder)
    ids: dict[str, list[int]] = {"0": [], "2": []}
    with torch.inference_mode():
        for request in greedy_requests(given, NEW_TOKENS):
            built.engine.add(request)
        for step in range(200):
            if step == 3:
                assert built.engine.abort("1") is not None
            for event in built.engine.step():
                ids.setdefault(event.request_id, []).extend(event.token_ids)
            if built.engine.is_idle:
                break
    for i in (0, 2):
        assert ids[str(i)] == generate_alone(tiny_target(), given[i], NEW_TOKENS)
    assert built.engine.snapshot().num_used_pages == 0


def test_attention_that_needs_lengths_on_the_host_drafts_late(draft_folder: Path) -> None:
    class OnHost(FixedReference):
        follows_device_lens = False

    backend = replace(
        taped(),
        make_attention=lambda page_size: OnHost(page_size=page_size, device=torch.device("cpu")),
    )
    built = graphed_engine(draft_folder=draft_folder, device_backend=backend)
    assert built.engine._ahead is None
    given = prompts(3, vocab=VOCAB)
    found = ids_of(built, greedy_requests(given, NEW_TOKENS))
    assert list(found.values()) == [generate_alone(tiny_target(), p, NEW_TOKENS) for p in given]
