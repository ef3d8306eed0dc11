"""Random numbers depend on what they decide and on nothing else."""

import numpy as np

from engine.rng import Purpose, round_uniforms


def test_the_same_key_gives_the_same_numbers_whatever_the_block_size() -> None:
    short = round_uniforms(7, choice=0, anchor_position=40, num_positions=3)
    long = round_uniforms(7, choice=0, anchor_position=40, num_positions=8)
    np.testing.assert_array_equal(short, long[:3])
    assert short.shape == (3, len(Purpose))


def test_seed_choice_and_anchor_each_change_every_number() -> None:
    base = {"choice": 0, "anchor_position": 40, "num_positions": 4}
    numbers = [
        round_uniforms(7, **base),
        round_uniforms(8, **base),
        round_uniforms(7, **{**base, "choice": 1}),
        round_uniforms(7, **{**base, "anchor_position": 41}),
    ]
    flat = np.concatenate([n.ravel() for n in numbers])
    assert len(np.unique(flat)) == flat.size


def test_any_python_integer_is_a_seed() -> None:
    for seed in (-1, 0, 2**63, 2**64 + 5):
        numbers = round_uniforms(seed, choice=0, anchor_position=0, num_positions=2)
        assert ((numbers >= 0) & (numbers < 1)).all()


def test_numbers_of_neighbouring_anchors_are_uncorrelated() -> None:
    rows = np.stack(
        [
            round_uniforms(3, choice=0, anchor_position=a, num_positions=4).ravel()
            for a in range(4000)
        ]
    )
    between = np.corrcoef(rows[:-1].T, rows[1:].T)[:12, 12:]
    assert np.abs(between).max() < 0.08
