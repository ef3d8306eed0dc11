"""The cost of a grammar, on a tiny pair."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dspark.bench.compare.grammar import NUM_ARMS, GrammarComparison, Masks, compare_grammars
from tests.support.bench.runs import workload
from tests.support.engine.option_cases import ByParity
from tests.support.engine.tiny_models import tiny_engine, tiny_target, write_tiny_draft


class AllowAll:
    """A mask that allows every token."""

    def fill(self, draft_ids: Sequence[int], bits: npt.NDArray[np.uint32]) -> None:
        bits[:] = 0xFFFF_FFFF

    def commit(self, token_id: int) -> bool:
        return False


def compared(folder: Path, masks: Masks) -> tuple[GrammarComparison, list[str]]:
    labels: list[str] = []
    comparison = compare_grammars(
        tiny_engine(target=tiny_target(has_eos=False), draft_folder=write_tiny_draft(folder)),
        workload(2, max_tokens=8, high=12),
        masks,
        trials=2,
        report=labels.append,
    )
    return comparison, labels


def test_text_under_a_mask_that_allows_all_of_it_is_the_free_text(tmp_path: Path) -> None:
    comparison, labels = compared(tmp_path, Masks(any_text=AllowAll, grammar=ByParity))
    assert comparison.holds
    assert len(labels) == NUM_ARMS * 3
    values = comparison.values()
    assert values["any_text_to_free"] is not None
    assert values["grammar_to_free"] is not None
    assert list(values["arms"]) == ["free", "any text", "grammar"]  # type: ignore[call-overload]
    lines = "\n".join(comparison.lines())
    assert "speed / free, decode only" in lines
    assert "identical" in lines


def test_a_mask_that_forbids_tokens_fails_the_comparison(tmp_path: Path) -> None:
    comparison, _ = compared(tmp_path, Masks(any_text=ByParity, grammar=ByParity))
    assert not comparison.holds
