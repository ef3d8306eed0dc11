"""Hidden states on disk."""

from pathlib import Path

import pytest
import torch

from draft.training import features
from draft.training.examples import OnlineExamples, TokenSequence
from draft.training.features import CachedExamples, cache_bytes
from tests.draft.tiny import CONFIG
from tests.draft.training.sequences import FakeTarget, sequences

SEQUENCES = sequences(5, vocab=CONFIG.vocab_size)


def cache(
    folder: Path, target: FakeTarget, *, identity: str = "a", **how: object
) -> CachedExamples:
    given = {"sequences": SEQUENCES, "shard_tokens": 30, **how}
    return CachedExamples(folder=folder, identity=identity, compute=target, **given)  # type: ignore[arg-type]


def silent(done: int) -> None:
    """A report that nobody reads."""


def test_a_cache_says_what_the_target_would_say_again(tmp_path: Path) -> None:
    cached = cache(tmp_path, FakeTarget(CONFIG))
    assert cached.fill(silent) == 5
    online = OnlineExamples(sequences=SEQUENCES, compute=FakeTarget(CONFIG))
    for index in range(5):
        one, other = cached.example(index), online.example(index)
        assert one.hidden.taps.dtype == torch.bfloat16
        assert torch.equal(one.hidden.taps, other.hidden.taps)
        assert torch.equal(one.hidden.final, other.hidden.final)
        assert torch.equal(one.hidden.log_normaliser, other.hidden.log_normaliser)
        assert torch.equal(one.token_ids, other.token_ids)
        assert torch.equal(one.is_answer, other.is_answer)


def test_a_killed_run_computes_only_what_is_missing(tmp_path: Path) -> None:
    cache(tmp_path, FakeTarget(CONFIG)).fill(silent)
    shards = sorted(tmp_path.iterdir())
    assert len(shards) == 3  # two sequences of 18 tokens each, and the last one
    shards[1].unlink()
    target = FakeTarget(CONFIG)
    assert cache(tmp_path, target).fill(silent) == 2
    assert target.num_passes == 2
    assert cache(tmp_path, target).fill(silent) == 0


@pytest.mark.parametrize(
    "how", [{"identity": "another target"}, {"sequences": sequences(5, vocab=61, seed=9)}]
)
def test_what_was_made_for_something_else_is_made_anew(
    tmp_path: Path, how: dict[str, object]
) -> None:
    cache(tmp_path, FakeTarget(CONFIG)).fill(silent)
    assert cache(tmp_path, FakeTarget(CONFIG), **how).fill(silent) == 5  # type: ignore[arg-type]


def test_a_full_disk_leaves_whole_shards_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, written = features.save_file, []

    def full(tensors: object, file: Path, **options: object) -> None:
        if written:
            file.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        written.append(file)
        real(tensors, file, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(features, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        cache(tmp_path, FakeTarget(CONFIG)).fill(silent)
    assert [file.name for file in tmp_path.iterdir()] == ["shard-00000.safetensors"]
    monkeypatch.undo()
    assert cache(tmp_path, FakeTarget(CONFIG)).fill(silent) == 3


def test_its_size_is_known_beforehand(tmp_path: Path) -> None:
    cache(tmp_path, FakeTarget(CONFIG)).fill(silent)
    on_disk = sum(file.stat().st_size for file in tmp_path.iterdir())
    counted = cache_bytes(SEQUENCES, aux_size=CONFIG.aux_size, hidden_size=CONFIG.hidden_size)
    assert counted == 5 * 18 * (3 * 32 * 2 + 4)
    assert counted < on_disk < 1.2 * counted


def test_the_prompt_is_not_what_is_learned() -> None:
    assert TokenSequence((5, 6, 7), 2).is_answer().tolist() == [False, False, True]
