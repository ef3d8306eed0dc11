"""Recorded hidden states equal those of a second pass."""

from pathlib import Path

import pytest
import torch

from dspark.training.data.examples import TokenSequence, rounded
from dspark.training.data.feature_store import FeatureStore
from dspark.training.data.hidden_states import HiddenStateReader
from dspark.training.data.state_recorder import HiddenStateRecorder, final_norm_of
from engine.api import EngineSamplingParams, Request
from engine.core.offline import RequestRun, drive
from engine.loading.target import LoadedTarget, by_transformers_alone
from tests.support.engine.running import prompts
from tests.support.engine.tiny_models import CPU, HIDDEN, LAYERS, VOCAB, tiny_engine, tiny_target

TAPS = (-1, 1, 3)
MIN_TOKENS = 2


def record(
    target: LoadedTarget,
    store: FeatureStore,
    *,
    by_states: bool = False,
    prefix_cache: bool = False,
    prompt_ids: list[list[int]] | None = None,
    **settings: object,
) -> tuple[list[RequestRun], HiddenStateRecorder, int]:
    """Return runs of a few prompts, greedy and sampled, the recorder and the preemptions."""
    reader = HiddenStateReader(target=target, tap_layers=TAPS, device=CPU)
    norm = final_norm_of(target, device=CPU)
    assert norm is not None
    recorder = HiddenStateRecorder(
        store=store,
        final_norm=norm,
        hidden_size=HIDDEN,
        normalise=(lambda final, start: reader.log_normaliser(final, start=start))
        if by_states
        else None,
        min_answer_tokens=MIN_TOKENS,
    )
    built = tiny_engine(
        target=target,
        observer=recorder,
        tap_layers=(*TAPS, LAYERS - 1),
        prefix_cache=prefix_cache,
        **settings,
    )
    requests = [
        Request(str(i), tuple(p), EngineSamplingParams(14, temperature=(0.0, 0.9)[i % 2], seed=i))
        for i, p in enumerate(prompt_ids or prompts(7, vocab=VOCAB))
    ]
    runs = drive(built.engine, requests, concurrency=4)
    store.flush()
    return runs, recorder, built.engine.snapshot().num_preemptions


def new_store(folder: Path, *, budget_bytes: int = 1 << 30) -> FeatureStore:
    return FeatureStore(folder=folder, identity="tiny", budget_bytes=budget_bytes)


def sequence_of(run: RequestRun) -> TokenSequence:
    return TokenSequence((*run.request.prompt_ids, *run.token_ids), len(run.request.prompt_ids))


def assert_stored_as_computed(
    target: LoadedTarget, store: FeatureStore, runs: list[RequestRun]
) -> None:
    reader = HiddenStateReader(target=target, tap_layers=TAPS, device=CPU)
    for run in runs:
        sequence = sequence_of(run)
        found = store.find(sequence)
        assert found is not None
        with by_transformers_alone(target.model, "sdpa"):
            expected = rounded(reader(sequence))
        for one, other in ((found.taps, expected.taps), (found.final, expected.final)):
            assert one.dtype == torch.bfloat16
            assert one.shape == other.shape
            scale = float(other.float().abs().max())
            difference = (one[:-1].float() - other[:-1].float()).abs()
            assert float(difference.max()) <= 2**-7 * scale  # may round differently
            assert float((difference > 0).float().mean()) < 0.01
        assert torch.equal(
            found.log_normaliser[: sequence.num_prompt_tokens],
            torch.zeros(sequence.num_prompt_tokens),
        )
        torch.testing.assert_close(
            found.log_normaliser[:-1], expected.log_normaliser[:-1], atol=1e-3, rtol=1e-4
        )


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="plain"),
        pytest.param({"prefill_chunk_tokens": 5}, id="chunks"),
        pytest.param({"num_pages": 22, "max_running_requests": 4}, id="preemption"),
        pytest.param({"native_kernels": "off"}, id="transformers"),
    ],
)
def test_every_answer_has_the_states_of_a_pass_over_it(
    name: str, settings: dict[str, object], tmp_path: Path
) -> None:
    target = tiny_target(name)
    store = new_store(tmp_path)
    runs, recorder, num_preemptions = record(target, store, **settings)
    long_enough = [run for run in runs if len(run.token_ids) >= MIN_TOKENS]
    assert len(long_enough) >= 5
    assert (recorder.num_stored, recorder.num_skipped) == (len(long_enough), 0)
    assert (num_preemptions > 0) == ("num_pages" in settings)
    assert_stored_as_computed(target, store, long_enough)
    assert_stored_as_computed(target, new_store(tmp_path), long_enough)  # from disk


def test_in_low_precision_the_normaliser_is_computed_from_the_states(tmp_path: Path) -> None:
    target, store = tiny_target(), new_store(tmp_path)
    runs, _, _ = record(target, store, by_states=True)
    assert_stored_as_computed(target, store, [r for r in runs if len(r.token_ids) >= MIN_TOKENS])


def test_a_sequence_with_cached_rows_is_skipped(
    tmp_path: Path,
) -> None:
    store = new_store(tmp_path)
    same = prompts(1, vocab=VOCAB, low=20)[0]
    runs, recorder, _ = record(tiny_target(), store, prefix_cache=True, prompt_ids=[same, same])
    assert (recorder.num_stored, recorder.num_skipped) == (1, 1)
    assert [sequence_of(run) in store for run in runs] == [True, False]


def test_states_over_the_budget_are_skipped(tmp_path: Path) -> None:
    row = 2 * HIDDEN * (len(TAPS) + 1) + 4
    store = new_store(tmp_path, budget_bytes=80 * row)
    runs, recorder, _ = record(tiny_target(), store)
    assert recorder.num_stored > 0
    assert recorder.num_skipped > 0
    kept = [run for run in runs if sequence_of(run) in store]
    assert sum(len(sequence_of(run).token_ids) for run in kept) <= 80


def test_a_final_state_that_is_more_than_a_norm_is_not_recorded() -> None:
    target = tiny_target()
    backbone = target.model.get_decoder()  # type: ignore[operator]
    assert final_norm_of(target, device=CPU) is backbone.norm
    backbone.register_forward_hook(
        lambda module, args, output: output.__class__(last_hidden_state=output[0] * 2)
    )
    assert final_norm_of(target, device=CPU) is None
