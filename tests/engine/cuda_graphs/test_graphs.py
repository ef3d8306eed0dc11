"""A replayed round generates the same tokens as an eager one, for any batch and padding."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.utils._python_dispatch import _disable_current_modes

from draft import DSparkProposer
from dspark.bench.draft_quality.confidence_rounds import ConfidenceRecorder
from engine import EngineSamplingParams, LoadError, Request
from engine.build import Built
from engine.cuda_graphs import GraphedProposer, GraphedTarget
from engine.cuda_graphs.tape import TapeCapturer, _TapeRecording
from engine.runner.target_model import TargetModel
from kv_pool import ReferenceAttention
from tests.support.engine.gemma4 import write_tiny_gemma4_draft
from tests.support.engine.option_cases import ByParity
from tests.support.engine.recorded import graphed_engine, taped
from tests.support.engine.running import generate_alone, greedy_requests, prompts, run_all
from tests.support.engine.tiny_models import VOCAB, tiny_engine, tiny_target, write_tiny_draft
from tests.support.engine.work import run_counting

NEW_TOKENS = 12


@pytest.fixture(scope="module")
def draft_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_draft(tmp_path_factory.mktemp("draft"))


@contextmanager
def counted_replays() -> Iterator[list[int]]:
    count = [0]
    replay = _TapeRecording.replay

    def counting(self: _TapeRecording[object]) -> None:
        count[0] += 1
        replay(self)

    with patch.object(_TapeRecording, "replay", counting):
        yield count


def texts_of(built: Built, requests: list[Request]) -> list[list[int]]:
    found = run_all(built, requests)
    return [found[request.request_id][0] for request in requests]


@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_greedy_text_equals_transformers(name: str, draft_folder: Path) -> None:
    prompt_ids = prompts(5, vocab=VOCAB)
    built = graphed_engine(target=tiny_target(name), draft_folder=draft_folder)
    with counted_replays() as replays:
        found = texts_of(built, greedy_requests(prompt_ids, NEW_TOKENS))
    assert found == [generate_alone(tiny_target(name), p, NEW_TOKENS) for p in prompt_ids]
    assert replays[0] > 20


def test_a_gemma4_pair_in_graphs_gives_the_text_of_transformers(tmp_path: Path) -> None:
    asked = prompts(3, vocab=VOCAB)
    folder = write_tiny_gemma4_draft(tmp_path)
    built = graphed_engine(target=tiny_target("gemma4"), draft_folder=folder)
    with counted_replays() as replays:
        found = texts_of(built, greedy_requests(asked, NEW_TOKENS))
    assert found == [generate_alone(tiny_target("gemma4"), p, NEW_TOKENS) for p in asked]
    assert replays[0] > 10


@pytest.mark.parametrize(
    "settings",
    [
        {"page_size": 1, "num_pages": 512},
        {"page_size": 16, "num_pages": 40},
        {"num_draft_tokens": 1},
        {"max_running_requests": 3, "prefill_chunk_tokens": 3},
        {"num_pages": 20},
    ],
    ids=str,
)
def test_greedy_text_is_the_same_under_any_setting(
    settings: dict[str, object], draft_folder: Path
) -> None:
    prompt_ids = prompts(6, vocab=VOCAB)
    built = graphed_engine(draft_folder=draft_folder, **settings)
    found = texts_of(built, greedy_requests(prompt_ids, NEW_TOKENS))
    assert found == [generate_alone(tiny_target(), p, NEW_TOKENS) for p in prompt_ids]


def test_plain_decoding_is_replayed_too() -> None:
    prompt_ids = prompts(3, vocab=VOCAB)
    built = graphed_engine(draft_folder=None)
    with counted_replays() as replays:
        found = texts_of(built, greedy_requests(prompt_ids, NEW_TOKENS))
    assert found == [generate_alone(tiny_target(), p, NEW_TOKENS) for p in prompt_ids]
    assert replays[0] >= NEW_TOKENS - 1


def sampled_requests(*, greedy: int) -> list[Request]:
    """Five requests: the first few are greedy, the others sampled."""
    return [
        Request(
            str(i),
            tuple(p),
            EngineSamplingParams(
                max_new_tokens=NEW_TOKENS, temperature=0.0 if i < greedy else 0.8, seed=i
            ),
        )
        for i, p in enumerate(prompts(5, vocab=VOCAB))
    ]


@pytest.mark.parametrize("greedy", [0, 2])
def test_seeded_samples_are_those_of_the_eager_engine(greedy: int, draft_folder: Path) -> None:
    """With some requests greedy, the sampling recording has greedy rows."""
    requests = sampled_requests(greedy=greedy)
    eager = tiny_engine(draft_folder=draft_folder, native_kernels="off")
    graphed = graphed_engine(draft_folder=draft_folder)
    assert texts_of(graphed, requests) == texts_of(eager, requests)


# PyTorch operators in addition to the two recordings: the batch's ids, inputs and outputs of the
# recordings, the verdict, and the context write, which on a GPU is one product and one kernel.
MOST_OPERATIONS = 49


def test_a_round_is_two_replays_one_read_of_the_device_and_few_operations(
    draft_folder: Path,
) -> None:
    built = graphed_engine(draft_folder=draft_folder)
    replay, replays = _TapeRecording.replay, [0]

    def uncounted(self: _TapeRecording[object]) -> None:
        replays[0] += 1
        with _disable_current_modes():
            replay(self)

    with patch.object(_TapeRecording, "replay", uncounted):
        steps = run_counting(built, greedy_requests(prompts(3, vocab=VOCAB, low=9), NEW_TOKENS))
    rounds = [step for step in steps if step.passes == [(15, 15)]]
    assert len(rounds) >= 2
    for step in rounds:
        assert step.reads["cpu"] == 1  # numpy reads what is on the host, here the scores as well
        assert set(step.reads) == {"cpu", "numpy"}
        assert step.gathered_bytes == 0
        assert step.operations.total() <= MOST_OPERATIONS, step.operations
    assert replays[0] >= 2 * len(rounds)


@pytest.mark.parametrize("threshold", [0.05, 0.3, 1.0])
def test_windows_that_a_threshold_cuts_are_replayed_at_any_length(
    threshold: float, draft_folder: Path
) -> None:
    """The number of verified tokens changes from step to step; the window does not."""
    requests = sampled_requests(greedy=2)
    settings: dict[str, Any] = {"draft_folder": draft_folder, "confidence_threshold": threshold}
    eager = tiny_engine(native_kernels="off", **settings)
    graphed = graphed_engine(**settings)
    with (
        patch.object(
            GraphedTarget, "forward", autospec=True, side_effect=GraphedTarget.forward
        ) as passes,
        counted_replays() as replays,
    ):
        found = texts_of(graphed, requests)
    assert found == texts_of(eager, requests)
    lengths = [call.args[1].query_lens for call in passes.call_args_list]
    windows = [lens for lens in lengths if max(lens) <= 5]
    assert replays[0] >= 2 * len(windows) - 2  # a round and a pass, but for the very first
    assert len({n for lens in windows for n in lens}) >= (2 if threshold == 1.0 else 3)


def test_windows_of_different_numbers_of_draft_tokens_are_replayed(draft_folder: Path) -> None:
    limits = (0, 1, 3, None)
    given = prompts(4, vocab=VOCAB, low=9)
    requests = [
        replace(each, params=replace(each.params, num_draft_tokens=limit, ignore_eos=True))
        for each, limit in zip(greedy_requests(given, NEW_TOKENS), limits, strict=True)
    ]
    eager = tiny_engine(native_kernels="off", draft_folder=draft_folder)
    graphed = graphed_engine(draft_folder=draft_folder)
    with (
        patch.object(
            GraphedTarget, "forward", autospec=True, side_effect=GraphedTarget.forward
        ) as passes,
        counted_replays() as replays,
    ):
        found = texts_of(graphed, requests)
    assert found == texts_of(eager, requests)
    lengths = {tuple(call.args[1].query_lens) for call in passes.call_args_list}
    assert (1, 2, 4, 5) in lengths
    assert replays[0] > 0


def test_confidences_outlive_the_pass_that_verifies_them(draft_folder: Path) -> None:
    rounds = []
    for make in (graphed_engine, tiny_engine):
        recorder = ConfidenceRecorder()
        built = make(draft_folder=draft_folder, observer=recorder, native_kernels="off")
        texts_of(built, sampled_requests(greedy=2))
        rounds.append(recorder.rounds(block_size=4, of=lambda name: True))
    graphed, eager = rounds
    assert len(graphed) > 10
    assert torch.equal(graphed.num_accepted, eager.num_accepted)
    torch.testing.assert_close(graphed.logits, eager.logits)


class Anything:
    """A token mask that allows everything."""

    def fill(self, output_ids: Any, row: Any) -> None:
        row[:] = 0xFFFF_FFFF

    def commit(self, token_id: int) -> bool:
        return False


@pytest.mark.parametrize("mask", [Anything, ByParity])
def test_greedy_blocks_under_a_mask_are_replayed_and_drafted_eagerly_where_they_break_it(
    mask: type, draft_folder: Path
) -> None:
    (prompt,) = prompts(1, vocab=VOCAB, low=9, high=10)

    def masked_requests() -> list[Request]:
        params = EngineSamplingParams(max_new_tokens=NEW_TOKENS)
        return [Request("a", tuple(prompt), params, token_mask=mask())]

    eager = tiny_engine(draft_folder=draft_folder, native_kernels="off")
    graphed = graphed_engine(draft_folder=draft_folder)
    with patch.object(
        DSparkProposer, "propose", autospec=True, side_effect=DSparkProposer.propose
    ) as picked:
        found = texts_of(graphed, masked_requests())
    assert (picked.call_count == 0) == (mask is Anything)
    assert found == texts_of(eager, masked_requests())


def test_a_batch_may_shrink_and_grow_again(draft_folder: Path) -> None:
    """Earlier values in the padding make no difference."""
    prompt_ids = prompts(6, vocab=VOCAB)
    lengths = [2, 20, 3, 11, 5, 7]
    requests = [
        Request(str(i), tuple(p), EngineSamplingParams(max_new_tokens=n))
        for i, (p, n) in enumerate(zip(prompt_ids, lengths, strict=True))
    ]
    built = graphed_engine(draft_folder=draft_folder)
    expected = [
        generate_alone(tiny_target(), p, n) for p, n in zip(prompt_ids, lengths, strict=True)
    ]
    assert texts_of(built, requests) == expected
    assert texts_of(built, requests) == expected


def test_a_step_without_drafts_replays_windows_of_one_row(draft_folder: Path) -> None:
    """Such as the last token of an output, or all tokens while drafts are suspended."""
    prompt_ids = prompts(3, vocab=VOCAB, low=9)
    built = graphed_engine(draft_folder=draft_folder)
    scheduler = built.engine._scheduler
    recordings = built.runner._windows  # type: ignore[attr-defined]
    replayed: list[tuple[int, int]] = []
    for key, window in recordings.items():
        replay = window.recording.replay
        window.recording.replay = lambda key=key, replay=replay: (replayed.append(key), replay())
    with patch.object(scheduler, "_most_drafts", lambda seq: 0):
        found = texts_of(built, greedy_requests(prompt_ids, NEW_TOKENS))
    assert found == [generate_alone(tiny_target(), p, NEW_TOKENS) for p in prompt_ids]
    assert {width for _, width in replayed} == {1}
    assert len(replayed) >= NEW_TOKENS - 1


@pytest.mark.parametrize(("drafts", "width"), [(0, 1), (1, 4), (3, 4), (4, 5)])
def test_a_step_runs_in_the_narrowest_window_that_holds_it(
    drafts: int, width: int, draft_folder: Path
) -> None:
    built = graphed_engine(draft_folder=draft_folder)
    runner = built.runner
    assert isinstance(runner, GraphedTarget)
    replayed: list[int] = []
    for (_, rows), window in runner._windows.items():
        replay = window.recording.replay
        window.recording.replay = lambda rows=rows, replay=replay: (replayed.append(rows), replay())  # type: ignore[method-assign,misc]
    requests = [
        replace(each, params=replace(each.params, num_draft_tokens=drafts, ignore_eos=True))
        for each in greedy_requests(prompts(3, vocab=VOCAB, low=9), 2 * NEW_TOKENS)
    ]
    found = texts_of(built, requests)
    assert found == texts_of(tiny_engine(draft_folder=draft_folder), requests)
    assert max(replayed) == width


def test_lookups_longer_than_a_block_have_windows_as_wide(draft_folder: Path) -> None:
    built = graphed_engine(draft_folder=draft_folder, lookup="on", lookup_tokens=7)
    assert isinstance(built.runner, GraphedTarget)
    assert {width for _, width in built.runner._windows} == {1, 4, 5, 8}


def test_recordings_of_all_sizes_share_their_outputs(draft_folder: Path) -> None:
    """Each writes to the first rows of the largest one's memory."""
    built = graphed_engine(draft_folder=draft_folder)
    assert isinstance(built.runner, GraphedTarget)
    assert isinstance(built.proposer, GraphedProposer)
    windows = built.runner._windows
    outputs = [window.recording.outputs for window in windows.values()]
    assert len({output.logits.data_ptr() for output in outputs}) == 1
    assert len({output.aux_hidden.data_ptr() for output in outputs}) == 1
    (shape,) = {output.logits.untyped_storage().nbytes() for output in outputs}
    assert shape == 6 * 5 * VOCAB * 4
    drawn = [r.recording.outputs.draft_probs for r in built.proposer._rounds.values()]
    assert len({probs.data_ptr() for probs in drawn if probs is not None}) == 1


def test_padding_writes_only_the_scratch_page(draft_folder: Path) -> None:
    built = graphed_engine(draft_folder=draft_folder, prefix_cache=False)
    pool = built.pool
    scratch = (pool.num_pages - 1) * pool.page_size
    assert pool.num_pages == built.memory.num_pages + 1
    storages = [pool.target_keys(0), pool.target_values(4), pool.draft_keys[1]]
    for storage in storages:
        assert not storage[:scratch].any(), "the capture wrote outside the scratch page"
    assert pool.draft_keys[1][scratch:].any()
    (prompt,) = prompts(1, vocab=VOCAB, low=9, high=10)
    found = texts_of(built, greedy_requests([prompt], 3))  # the last windows are short ones
    used = -(-(len(prompt) + 3 + built.proposer.num_slots) // pool.page_size)
    for storage in storages:
        written = storage[:scratch].flatten(1).any(dim=1).view(-1, pool.page_size).any(dim=1)
        assert 0 < int(written.sum()) <= used
    assert found == [generate_alone(tiny_target(), prompt, 3)]


def test_no_sequence_reads_the_scratch_page(draft_folder: Path) -> None:
    """Batches of 5 in a capture size of 6, with short last windows, over a scratch page of NaN."""
    built = graphed_engine(draft_folder=draft_folder)
    pool = built.pool
    scratch = (pool.num_pages - 1) * pool.page_size
    for layer in range(5):
        pool.target_keys(layer)[scratch:] = torch.nan
        pool.target_values(layer)[scratch:] = torch.nan
    pool.draft_keys[:, scratch:] = torch.nan
    pool.draft_values[:, scratch:] = torch.nan
    prompt_ids = prompts(5, vocab=VOCAB)
    found = texts_of(built, greedy_requests(prompt_ids, 7))
    assert found == [generate_alone(tiny_target(), p, 7) for p in prompt_ids]
    assert pool.target_values(4)[scratch:].isnan().any()
    assert not pool.target_values(4)[:scratch].isnan().any()


def test_sequences_shorter_than_a_window_run_eagerly(draft_folder: Path) -> None:
    built = graphed_engine(draft_folder=draft_folder)
    prompt_ids = [[7], [5, 9], [11, 3, 8]]
    found = texts_of(built, greedy_requests(prompt_ids, NEW_TOKENS))
    assert found == [generate_alone(tiny_target(), p, NEW_TOKENS) for p in prompt_ids]


def test_prompt_chunks_run_eagerly(draft_folder: Path) -> None:
    built = graphed_engine(draft_folder=draft_folder)
    assert isinstance(built.runner, GraphedTarget)
    assert isinstance(built.proposer, GraphedProposer)
    (prompt,) = prompts(1, vocab=VOCAB, low=20, high=21)
    with (
        patch.object(TargetModel, "forward", autospec=True, side_effect=TargetModel.forward) as ran,
        patch.object(DSparkProposer, "propose", side_effect=AssertionError("not replayed")),
    ):
        texts_of(built, greedy_requests([prompt], NEW_TOKENS))
    assert [len(call.args[1].token_ids) for call in ran.call_args_list] == [len(prompt)]


def test_the_context_writers_mode_switches_without_moving_a_weight(draft_folder: Path) -> None:
    built = graphed_engine(draft_folder=draft_folder, stacked_context_kv="off")
    assert built.draft is not None
    addresses = [p.data_ptr() for p in built.draft.network.parameters()]
    prompt_ids = prompts(3, vocab=VOCAB)
    expected = [generate_alone(tiny_target(), p, NEW_TOKENS) for p in prompt_ids]
    for mode in ("on", "off", "auto"):
        assert built.engine.set_context_kv(mode).mode == mode  # type: ignore[arg-type]
        assert texts_of(built, greedy_requests(prompt_ids, NEW_TOKENS)) == expected
    assert [p.data_ptr() for p in built.draft.network.parameters()] == addresses


def test_attention_without_fixed_shapes_leaves_all_passes_eager_and_the_reason_is_reported(
    draft_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = replace(
        taped(),
        make_attention=lambda page_size: ReferenceAttention(
            page_size=page_size, device=torch.device("cpu")
        ),
    )
    with caplog.at_level(logging.WARNING):
        built = graphed_engine(draft_folder=draft_folder, device_backend=plain)
    reason = "reference attention has no fixed shapes"
    assert f"no graphs: {reason}" in caplog.text
    assert built.engine.info.details["graphs"] == {"tiers": [], "reason": reason}
    assert isinstance(built.runner, TargetModel)
    prompt_ids = prompts(2, vocab=VOCAB)
    found = texts_of(built, greedy_requests(prompt_ids, NEW_TOKENS))
    assert found == [generate_alone(tiny_target(), p, NEW_TOKENS) for p in prompt_ids]


def test_graphs_on_refuses_to_start_without_graphs(draft_folder: Path) -> None:
    plain = replace(
        taped(),
        make_attention=lambda page_size: ReferenceAttention(
            page_size=page_size, device=torch.device("cpu")
        ),
    )
    found = "device.graphs: found on, but reference attention has no fixed shapes; accepted: auto"
    with pytest.raises(LoadError, match=found):
        graphed_engine(draft_folder=draft_folder, device_backend=plain, graphs="on")
    with pytest.raises(LoadError, match="found on, but graphs are for CUDA"):
        tiny_engine(draft_folder=draft_folder, graphs="on")
    built = graphed_engine(draft_folder=draft_folder, graphs="on")
    assert isinstance(built.runner, GraphedTarget)


class _OutOfResources(Exception):
    """Is no RuntimeError, as Triton's error of the same name."""


@pytest.mark.parametrize("error", [_OutOfResources, RuntimeError, torch.OutOfMemoryError])
def test_any_failure_of_a_capture_leaves_passes_eager(
    draft_folder: Path, error: type[Exception]
) -> None:
    with patch.object(TapeCapturer, "capture", side_effect=error("out of resource")):
        built = graphed_engine(draft_folder=draft_folder)
        with pytest.raises(LoadError, match="found on, but out of resource"):
            graphed_engine(draft_folder=draft_folder, graphs="on")
    assert built.engine.info.details["graphs"] == {"tiers": [], "reason": "out of resource"}


def test_the_capture_sizes_are_reported(draft_folder: Path) -> None:
    built = graphed_engine(draft_folder=draft_folder)
    assert built.engine.info.details["graphs"] == {"tiers": [1, 2, 4, 6], "reason": None}
