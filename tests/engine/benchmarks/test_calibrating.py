"""Which prompts fit temperatures, and which judge them."""

import pytest

from engine.benchmarks.calibrating import held_out_prompts


def test_one_prompt_of_four_judges() -> None:
    assert held_out_prompts(["a"] * 8) == [False, False, False, True] * 2


@pytest.mark.parametrize("num_categories", [2, 4, 5])
def test_categories_that_take_turns_are_all_in_both_parts(num_categories: int) -> None:
    categories = [str(i % num_categories) for i in range(num_categories * 8)]
    held = held_out_prompts(categories)
    for wanted in (True, False):
        part = {c for c, is_held in zip(categories, held, strict=True) if is_held is wanted}
        assert len(part) == num_categories
    assert sum(held) == len(categories) / 4


def test_a_dozen_prompts_of_four_kinds_leave_three_to_judge_of_different_kinds() -> None:
    categories = ["chat", "code", "math", "tale"] * 3
    held = held_out_prompts(categories)
    judging = [c for c, is_held in zip(categories, held, strict=True) if is_held]
    assert len(judging) == len(set(judging)) == 3
