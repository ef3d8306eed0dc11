"""Examples with hidden states from a store on disk."""

from pathlib import Path

import pytest
import torch

from dspark.training.data import feature_store
from dspark.training.data.examples import TokenSequence
from dspark.training.data.feature_store import FeatureStore
from dspark.training.data.sequence_examples import SequenceExamples, cache_bytes
from tests.support.draft.tiny import CONFIG
from tests.support.training.sequences import FakeTarget, sequences

SEQUENCES = sequences(5, vocab=CONFIG.vocab_size)
ALL_BYTES = cache_bytes(SEQUENCES, aux_size=CONFIG.aux_size, hidden_size=CONFIG.hidden_size)


def store_in(
    folder: Path, *, identity: str = "a", budget_bytes: int = 1 << 30, shard_tokens: int = 30
) -> FeatureStore:
    return FeatureStore(
        folder=folder, identity=identity, budget_bytes=budget_bytes, shard_tokens=shard_tokens
    )


def cache(
    folder: Path, target: FakeTarget, selected: list[TokenSequence] = SEQUENCES, **how: object
) -> SequenceExamples:
    store = store_in(folder, **how)  # type: ignore[arg-type]
    return SequenceExamples(sequences=selected, store=store, compute=target)


def silent(done: int) -> None:
    """A report without output."""


def assert_same_examples(one: SequenceExamples, other: SequenceExamples) -> None:
    for index in range(len(other)):
        found, expected = one.example(index), other.example(index)
        assert found.hidden.taps.dtype == torch.bfloat16
        assert torch.equal(found.hidden.taps, expected.hidden.taps)
        assert torch.equal(found.hidden.final, expected.hidden.final)
        assert torch.equal(found.hidden.log_normaliser, expected.hidden.log_normaliser)
        assert torch.equal(found.token_ids, expected.token_ids)
        assert torch.equal(found.is_answer, expected.is_answer)


def test_stored_states_equal_computed_ones(tmp_path: Path) -> None:
    cached = cache(tmp_path, FakeTarget(CONFIG))
    assert cached.fill(silent) == 5
    online = SequenceExamples(sequences=SEQUENCES, compute=FakeTarget(CONFIG))
    assert_same_examples(cached, online)
    assert_same_examples(cache(tmp_path, FakeTarget(CONFIG)), online)


def test_an_interrupted_run_computes_only_missing_states(tmp_path: Path) -> None:
    cache(tmp_path, FakeTarget(CONFIG)).fill(silent)
    shards = sorted(tmp_path.iterdir())
    assert len(shards) == 3  # two sequences of 18 tokens each, and the last one
    shards[1].unlink()
    target = FakeTarget(CONFIG)
    again = cache(tmp_path, target)
    assert again.num_missing == 2
    reports: list[int] = []
    assert again.fill(reports.append) == 2
    assert reports == [1, 2]  # of those that were missing
    assert target.num_passes == 2
    assert cache(tmp_path, target).fill(silent) == 0


def test_states_added_in_any_order_are_not_computed(tmp_path: Path) -> None:
    store, source = store_in(tmp_path), FakeTarget(CONFIG)
    for sequence in (SEQUENCES[3], SEQUENCES[0], SEQUENCES[2]):
        assert store.add(sequence, source(sequence))
        assert store.add(sequence, source(sequence))  # twice is once
    store.flush()
    target = FakeTarget(CONFIG)
    cached = cache(tmp_path, target)
    assert cached.fill(silent) == 2
    assert target.num_passes == 2
    online = SequenceExamples(sequences=SEQUENCES, compute=FakeTarget(CONFIG))
    assert_same_examples(cached, online)


def test_shards_of_another_target_or_other_taps_are_removed(tmp_path: Path) -> None:
    cache(tmp_path, FakeTarget(CONFIG)).fill(silent)
    before = set(tmp_path.iterdir())
    (tmp_path / "shard-00009.safetensors").write_bytes(b"broken")
    other = cache(tmp_path, FakeTarget(CONFIG), identity="b")
    assert not any(tmp_path.iterdir())
    assert other.fill(silent) == 5
    assert len(set(tmp_path.iterdir())) == len(before)


def test_shards_of_unused_sequences_are_removed(tmp_path: Path) -> None:
    cache(tmp_path, FakeTarget(CONFIG)).fill(silent)
    store = store_in(tmp_path)
    store.keep_only(SEQUENCES[2:4])
    assert len(list(tmp_path.iterdir())) == 1
    assert [sequence in store for sequence in SEQUENCES] == [False, False, True, True, False]


def test_states_over_the_budget_are_computed_at_each_visit(tmp_path: Path) -> None:
    target = FakeTarget(CONFIG)
    cached = cache(tmp_path, target, budget_bytes=ALL_BYTES * 3 // 5)
    assert cached.fill(silent) == 3
    assert cached.num_missing == 2
    online = SequenceExamples(sequences=SEQUENCES, compute=FakeTarget(CONFIG))
    before = target.num_passes
    assert_same_examples(cached, online)
    assert target.num_passes == before + 2
    later = store_in(tmp_path, budget_bytes=ALL_BYTES * 3 // 5)
    assert not later.add(SEQUENCES[4], target(SEQUENCES[4]))  # stored shards count


def test_a_full_disk_leaves_complete_shards_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, written = feature_store.save_file, []

    def full(tensors: object, file: Path, **options: object) -> None:
        if written:
            file.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        written.append(file)
        real(tensors, file, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(feature_store, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        cache(tmp_path, FakeTarget(CONFIG)).fill(silent)
    assert [file.name for file in tmp_path.iterdir()] == ["shard-00000.safetensors"]
    monkeypatch.undo()
    assert cache(tmp_path, FakeTarget(CONFIG)).fill(silent) == 3


def test_the_size_is_computed_in_advance(tmp_path: Path) -> None:
    cache(tmp_path, FakeTarget(CONFIG)).fill(silent)
    on_disk = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert ALL_BYTES == 5 * 18 * (3 * 32 * 2 + 4)
    assert ALL_BYTES < on_disk < 1.2 * ALL_BYTES


def test_a_sequence_is_hashed_once_and_is_found_in_stores_of_earlier_versions() -> None:
    sequence = TokenSequence((5, 6, 7), 2)
    assert sequence.name is sequence.name
    assert sequence.name == "93c31f6b581f708ec36aecdb477a5544"
    assert TokenSequence((5, 6), 2).name != TokenSequence((5, 6), 1).name


def test_the_prompt_is_not_trained() -> None:
    assert TokenSequence((5, 6, 7), 2).is_answer().tolist() == [False, False, True]
