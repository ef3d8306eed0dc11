"""Several answers to one prompt: their own draws, and the prompt's pages in common."""

from pathlib import Path

import pytest

from engine import EngineSamplingParams, Request
from engine.build import Built
from tests.support.engine.running import run_told
from tests.support.engine.scheduling import Harness, request
from tests.support.engine.tiny_models import tiny_engine, write_tiny_draft

PROMPT = tuple(range(10, 29))  # 19 tokens: four full pages of 4, and three tokens
HOT = EngineSamplingParams(max_new_tokens=14, temperature=1.0, seed=3)
PAGE = 4


@pytest.fixture(scope="module")
def draft_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_draft(tmp_path_factory.mktemp("draft"))


def _choices(count: int, params: EngineSamplingParams = HOT) -> list[Request]:
    return [Request(f"c{i}", PROMPT, params, choice=i) for i in range(count)]


def _engine(folder: Path, **settings: object) -> Built:
    return tiny_engine(draft_folder=folder, page_size=PAGE, **settings)


def test_choices_of_one_seed_draw_independently_and_each_is_the_same_alone(
    draft_folder: Path,
) -> None:
    built = _engine(draft_folder, prefix_cache=False)
    together = run_told(built, _choices(5))
    assert len({tuple(answer.ids) for answer in together.values()}) == 5
    for choice in _choices(5):
        (alone,) = run_told(built, [choice]).values()
        assert alone.ids == together[choice.request_id].ids


@pytest.mark.parametrize("chunk", [3, 8, 64])
def test_choices_share_the_prompts_full_pages_and_say_the_same(
    draft_folder: Path, chunk: int
) -> None:
    apart = run_told(_engine(draft_folder, prefix_cache=False), _choices(3))
    built = _engine(draft_folder, prefix_cache=True, prefill_chunk_tokens=chunk)
    shared = run_told(built, _choices(3))
    assert [shared[f"c{i}"].ids for i in range(3)] == [apart[f"c{i}"].ids for i in range(3)]
    assert [shared[f"c{i}"].finish.num_cached_tokens for i in range(3)] == [0, 16, 16]


def test_choices_that_tell_of_the_prompt_compute_it_each_for_itself(draft_folder: Path) -> None:
    params = EngineSamplingParams(max_new_tokens=3, num_logprobs=1, prompt_logprobs_from=0)
    answers = run_told(_engine(draft_folder, prefix_cache=True), _choices(2, params))
    for answer in answers.values():
        assert answer.finish.num_cached_tokens == 0
        assert [entry.token_id for entry in answer.prompt_logprobs] == list(PROMPT[1:])


def test_a_cached_prefix_is_used_up_to_the_first_token_that_is_told_of(draft_folder: Path) -> None:
    built = _engine(draft_folder, prefix_cache=True)
    run_told(built, _choices(1))
    for start, cached in ((0, 0), (4, 0), (5, 4), (9, 8), (17, 16), (18, 16), (30, 16)):
        params = EngineSamplingParams(max_new_tokens=2, num_logprobs=0, prompt_logprobs_from=start)
        answer = run_told(built, _choices(1, params))["c0"]
        assert answer.finish.num_cached_tokens == cached
        assert [e.token_id for e in answer.prompt_logprobs] == list(PROMPT[max(1, start) :])


def test_a_twin_waits_for_the_prompt_and_no_request_waits_for_the_twin() -> None:
    harness = Harness(prefix_cache=True, chunk=8)
    harness.scheduler.add(request("a", prompt_len=16))
    harness.scheduler.add(request("b", prompt_len=16))
    harness.scheduler.add(request("c", prompt_len=3))
    harness.step()  # half of a's prompt
    assert harness.scheduler.num_running == 1
    harness.step()  # the other half, and no room for more
    harness.step()
    assert harness.scheduler.num_running == 3
    harness.run()
    finishes = {name: harness.finish_of(name).finish for name in "abc"}
    assert [f.num_cached_tokens for f in finishes.values() if f is not None] == [0, 12, 0]
    assert harness.output("a") == harness.output("b")


def test_rows_that_options_touch_are_counted_and_others_are_not() -> None:
    built = tiny_engine()
    run_told(built, [Request("plain", PROMPT, EngineSamplingParams(max_new_tokens=4))])
    before = built.engine.snapshot()
    assert (before.num_processed_rows, before.num_logprob_rows) == (0, 0)
    params = EngineSamplingParams(
        max_new_tokens=4, presence_penalty=1.0, num_logprobs=0, prompt_logprobs_from=0
    )
    run_told(built, [Request("asks", PROMPT, params)])
    after = built.engine.snapshot()
    assert (after.num_processed_rows, after.num_logprob_rows) == (4, 4 + len(PROMPT) - 1)


def test_once_a_prompt_is_there_all_who_waited_begin_together() -> None:
    harness = Harness(prefix_cache=True, chunk=32, max_running=4)
    for name in "abcd":
        harness.scheduler.add(request(name, prompt_len=14))
    harness.step()
    assert harness.scheduler.num_running == 1
    harness.step()
    assert harness.scheduler.num_running == 4
