"""All options of a request together: inside a draft block as in plain decoding."""

import itertools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import FinishReason, Request, TokenLogprob
from engine.build import Built
from engine.draft_length.cost_model import Curve, StepCosts
from tests.support.engine import options_table
from tests.support.engine.option_cases import (
    NEW_TOKENS,
    OPTIONS,
    PROMPTS,
    VOCAB,
    Asked,
    Option,
    prompt_logprobs,
    reference,
    target,
    together,
)
from tests.support.engine.planning import scripted_drafts
from tests.support.engine.running import Answered, oracle, run_told
from tests.support.engine.tiny_models import tiny_engine, write_tiny_draft

PAIRS = [(option, option) for option in OPTIONS] + list(itertools.combinations(OPTIONS, 2))
EACH_PAIR = pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: _name(pair))
GREEDY = next(option for option in OPTIONS if option.name == "temperature")
HOT = {"temperature": 0.8, "seed": 11}
ANY_COSTS = StepCosts(passes=Curve.through({1: 1.0}), drafts=Curve.through({1: 1.0}))

Answers = dict[str, Answered]


# Any repeated token is looked up, so that most rounds verify lookups, good and bad ones.
LOOKUPS: dict[str, Any] = {"lookup": "on", "lookup_min_match": 1}


def _name(pair: Sequence[Option]) -> str:
    return "+".join(dict.fromkeys(option.name for option in pair))


def _asked(pair: Sequence[Option]) -> dict[str, tuple[Asked, tuple[int, ...]]]:
    """What the pair asks of each prompt, by the request's name."""
    return {
        f"{_name(pair)} {i}": (together(pair, prompt), prompt) for i, prompt in enumerate(PROMPTS)
    }


def _requests(pairs: Sequence[Sequence[Option]], **changes: object) -> list[Request]:
    return [
        asked.request(name, prompt, **changes)
        for pair in pairs
        for name, (asked, prompt) in _asked(pair).items()
    ]


def _seeded() -> list[Request]:
    """A hot request for each pair, all with one seed and of one prompt."""
    return _requests(PAIRS, **HOT)[:: len(PROMPTS)]


def _preempted(built: Built) -> int:
    return built.engine.snapshot().num_preemptions


@pytest.fixture(scope="module")
def draft_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_draft(tmp_path_factory.mktemp("draft"))


@pytest.fixture(scope="module")
def speculative(draft_folder: Path) -> Built:
    return tiny_engine(target=target(), draft_folder=draft_folder, max_queued_requests=1000)


@pytest.fixture(scope="module", params=["no draft", "lookups", "good drafts", "any number of them"])
def greedy(request: pytest.FixtureRequest, speculative: Built, draft_folder: Path) -> Answers:
    """The outputs of all pairs of options, in one batch."""
    requests = _requests(PAIRS)
    if request.param == "no draft":
        return run_told(tiny_engine(target=target(), max_queued_requests=1000), requests)
    if request.param == "lookups":
        built = tiny_engine(target=target(), max_queued_requests=1000, **LOOKUPS)
        answers = run_told(built, requests)
        seen = built.engine.snapshot().sources["lookup"]
        assert 0 < seen.num_accepted < seen.num_draft_tokens
        return answers
    texts = [
        [*prompt, *reference(asked, prompt)[0]]
        for pair in PAIRS
        for asked, prompt in _asked(pair).values()
    ]
    with oracle(texts, good=3, vocab=VOCAB):
        if request.param == "good drafts":
            return run_told(speculative, requests)
        numbers = random.Random(0)

        def anything(caps: Sequence[int]) -> list[int]:
            return [numbers.randint(0, cap) for cap in caps]

        built = tiny_engine(
            target=target(), draft_folder=draft_folder, max_queued_requests=1000, costs=ANY_COSTS
        )
        with scripted_drafts(anything, block_size=4):
            return run_told(built, requests)


@pytest.fixture(scope="module", params=[{}, LOOKUPS], ids=["drafts", "lookups too"])
def seeded_settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    settings: dict[str, Any] = request.param
    return settings


@pytest.fixture(scope="module")
def sampling(draft_folder: Path, seeded_settings: dict[str, Any]) -> Built:
    return tiny_engine(
        target=target(), draft_folder=draft_folder, max_queued_requests=1000, **seeded_settings
    )


@pytest.fixture(scope="module")
def alone(sampling: Built) -> Answers:
    """Seeded answers, one request after the other."""
    answers: Answers = {}
    for request in _seeded():
        answers |= run_told(sampling, [request])
    return answers


@pytest.fixture(scope="module")
def crowded(sampling: Built) -> Answers:
    return run_told(sampling, _seeded()[::-1])


@pytest.fixture(scope="module")
def preempted(draft_folder: Path, seeded_settings: dict[str, Any]) -> Answers:
    """So few pages that sequences take them from each other, and chunks of three tokens."""
    built = tiny_engine(
        target=target(),
        draft_folder=draft_folder,
        num_pages=14,
        prefill_chunk_tokens=3,
        max_queued_requests=1000,
        **seeded_settings,
    )
    answers = run_told(built, _seeded())
    assert _preempted(built) > 20
    return answers


def _check_logprobs(found: Sequence[TokenLogprob], expected: Sequence[torch.Tensor]) -> None:
    for entry, row in zip(found, expected, strict=True):
        assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=1e-4)
        assert [v for _, v in entry.top] == pytest.approx(
            row.topk(len(entry.top)).values.tolist(), abs=1e-4
        )
        for token_id, value in (*entry.top, *entry.requested):
            assert value == pytest.approx(float(row[token_id]), abs=1e-4)
        own = float(row[entry.token_id])
        assert int((row > own + 1e-4).sum()) < entry.rank <= int((row >= own - 1e-4).sum())


def _check_requested_logprobs(answer: Answered, asked: Asked, prompt: tuple[int, ...]) -> None:
    """Logprobs of exactly the output tokens, if they were requested."""
    num_top, start = asked.params.num_logprobs, asked.params.prompt_logprobs_from
    _, rows = reference(asked, prompt)
    if num_top is None:
        assert answer.logprobs == []
        assert answer.prompt_logprobs == []
        return
    assert [entry.token_id for entry in answer.logprobs] == answer.ids
    assert {len(entry.top) for entry in answer.logprobs} == {num_top}
    wanted = asked.params.logprob_token_ids
    assert {tuple(i for i, _ in entry.requested) for entry in answer.logprobs} == {wanted}
    _check_logprobs(answer.logprobs, rows)
    if start is not None:
        first = max(1, start)
        assert [entry.token_id for entry in answer.prompt_logprobs] == list(prompt[first:])
        _check_logprobs(answer.prompt_logprobs, list(prompt_logprobs(prompt)[first - 1 : -1]))


@EACH_PAIR
def test_greedy_text_with_any_two_options_is_transformers_own_with_and_without_drafts(
    pair: tuple[Option, Option], greedy: Answers
) -> None:
    for name, (asked, prompt) in _asked(pair).items():
        expected, _ = reference(asked, prompt)
        answer = greedy[name]
        assert answer.ids == expected
        assert answer.finish.num_output_tokens == len(expected)
        assert answer.finish.reason is FinishReason.STOP or len(expected) == NEW_TOKENS
        _check_requested_logprobs(answer, asked, prompt)


@EACH_PAIR
def test_a_seeded_request_with_any_two_options_is_the_same_alone_in_a_crowd_and_preempted(
    pair: tuple[Option, Option], alone: Answers, crowded: Answers, preempted: Answers
) -> None:
    name, (asked, _) = next(iter(_asked(pair).items()))
    answer = alone[name]
    assert (answer.logprobs != []) == (asked.params.num_logprobs is not None)
    for other in (crowded[name], preempted[name]):
        assert other.ids == answer.ids
        assert other.finish.matched == answer.finish.matched
        for found, expected in (
            (other.logprobs, answer.logprobs),
            (other.prompt_logprobs, answer.prompt_logprobs),
        ):
            assert [e.token_id for e in found] == [e.token_id for e in expected]
            assert [e.logprob for e in found] == pytest.approx(
                [e.logprob for e in expected], abs=1e-4
            )


@pytest.mark.parametrize(
    "option",
    [o for o in OPTIONS if o.name not in ("temperature", "top_k", "top_p", "min_p", "seed", "n")],
    ids=lambda option: option.name,
)
def test_every_option_of_these_tests_matters_to_them(option: Option) -> None:
    if option.params.get("num_logprobs"):
        return
    changed = 0
    for prompt in PROMPTS:
        base = reference(together([GREEDY], prompt), prompt)[0]
        changed += reference(together([option], prompt), prompt)[0] != base
    if option.name == "min_tokens":  # shown by what it forbids: it needs a stop to matter
        stop = next(o for o in OPTIONS if o.name == "stop_token_ids")
        changed = sum(
            reference(together([stop], p), p)[0] != reference(together([stop, option], p), p)[0]
            for p in PROMPTS
        )
    assert changed


def test_the_table_of_options_is_made_from_these_cases() -> None:
    assert options_table.FILE.read_text() == options_table.table(), "stale: run make docs"
