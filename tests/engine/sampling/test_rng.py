"""Random numbers depend only on their key."""

import numpy as np

from engine.sampling.rng import Purpose, RoundKey, round_uniforms


def one_round(seed: int, *, choice: int = 0, anchor: int = 40, num_positions: int) -> np.ndarray:
    (numbers,) = round_uniforms([RoundKey(seed, choice, anchor)], num_positions=num_positions)
    return numbers


def test_the_same_key_gives_the_same_numbers_whatever_the_block_size() -> None:
    short, long = one_round(7, num_positions=3), one_round(7, num_positions=8)
    np.testing.assert_array_equal(short, long[:3])
    assert short.shape == (3, len(Purpose))


def test_seed_choice_and_anchor_each_change_every_number() -> None:
    keys = [RoundKey(7, 0, 40), RoundKey(8, 0, 40), RoundKey(7, 1, 40), RoundKey(7, 0, 41)]
    numbers = round_uniforms(keys, num_positions=4)
    assert len(np.unique(numbers)) == numbers.size


def test_a_round_has_the_same_numbers_in_any_batch() -> None:
    """They are those of a Philox generator with the round's key and counter."""
    keys = [RoundKey(seed, choice, 3 * choice) for seed in (5, 2**64 - 1, 5) for choice in (0, 1)]
    numbers = round_uniforms(keys, num_positions=3)
    for key, found in zip(keys, numbers, strict=True):
        np.testing.assert_array_equal(found, round_uniforms([key], num_positions=3)[0])
        bits = np.random.Philox(
            key=np.array([key.seed, key.choice], dtype=np.uint64),
            counter=np.array([0, 0, key.anchor_position, 0], dtype=np.uint64),
        )
        np.testing.assert_array_equal(found, np.random.Generator(bits).random((3, len(Purpose))))


def test_any_python_integer_is_a_seed() -> None:
    for seed in (-1, 0, 2**63, 2**64 + 5):
        numbers = one_round(seed, num_positions=2)
        assert ((numbers >= 0) & (numbers < 1)).all()


def test_numbers_of_neighbouring_anchors_are_uncorrelated() -> None:
    keys = [RoundKey(3, 0, anchor) for anchor in range(4000)]
    rows = round_uniforms(keys, num_positions=4).reshape(4000, -1)
    between = np.corrcoef(rows[:-1].T, rows[1:].T)[:12, 12:]
    assert np.abs(between).max() < 0.08
