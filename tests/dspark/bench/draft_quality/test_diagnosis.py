"""A good draft that is read wrongly is recognised, and the right reading is named."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from dspark.bench.draft_quality.diagnosis import Diagnosis, Text, try_readings
from engine.loading.target import LoadedTarget
from tests.support.engine.overfitted import declare, write_overfitted_draft
from tests.support.engine.running import generate_alone, greedy_requests, prompts, run_all
from tests.support.engine.tiny_models import (
    CPU,
    VOCAB,
    load_tiny_draft,
    tiny_engine,
    tiny_target,
    write_tiny_draft,
)

NEW_TOKENS = 40
PROMPTS = prompts(3, vocab=VOCAB, low=6, high=12)


def new_target() -> LoadedTarget:
    return tiny_target(has_eos=False)


@pytest.fixture(scope="module")
def texts() -> list[Text]:
    target = new_target()
    return [Text(tuple(p), tuple(generate_alone(target, p, NEW_TOKENS))) for p in PROMPTS]


def trained(folder: Path, texts: list[Text], *, taps: tuple[int, ...], samples: bool) -> Path:
    lessons = [[*text.prompt_ids, *text.output_ids] for text in texts]
    return write_overfitted_draft(folder, new_target(), lessons, taps=taps, samples=samples)


@pytest.fixture(scope="module")
def well_read(texts: list[Text], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft of native slots with taps 0, 2 and 3, and declared so."""
    return trained(tmp_path_factory.mktemp("draft"), texts, taps=(0, 2, 3), samples=True)


def diagnosed(folder: Path, texts: list[Text]) -> Diagnosis:
    target = new_target()
    draft = load_tiny_draft(folder, target)
    with torch.inference_mode():
        found = try_readings(target, draft, texts, device=CPU)
    assert found is not None
    return found


@pytest.mark.parametrize("samples", [True, False])
def test_the_wrong_slot_convention_is_named(
    samples: bool, texts: list[Text], well_read: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(well_read, tmp_path / "draft")
    if not samples:
        trained(folder, texts, taps=(0, 2, 3), samples=False)
    right = diagnosed(folder, texts)
    assert right.holds
    assert right.declared.accept_length > 2.5
    declare(folder, sample_from_anchor=not samples)
    wrong = diagnosed(folder, texts)
    assert not wrong.holds
    assert wrong.declared.accept_length < 1.3
    assert wrong.right_reading is not None
    assert wrong.right_reading.config.sample_from_anchor == samples
    assert f"is sample_from_anchor: {json.dumps(samples)} in its config.json" in wrong.verdict()


@pytest.mark.parametrize(
    ("right", "declared", "direction"),
    [((0, 2, 3), (-1, 1, 2), "low"), ((0, 1, 2), (1, 2, 3), "high")],
)
def test_shifted_taps_are_named(
    right: tuple[int, ...],
    declared: tuple[int, ...],
    direction: str,
    texts: list[Text],
    well_read: Path,
    tmp_path: Path,
) -> None:
    folder = shutil.copytree(well_read, tmp_path / "draft")
    if right != (0, 2, 3):
        trained(folder, texts, taps=right, samples=True)
    declare(folder, target_layer_ids=list(declared))
    wrong = diagnosed(folder, texts)
    assert wrong.right_reading is not None
    assert wrong.right_reading.config.tap_layers == right
    assert wrong.verdict().startswith(f"the draft's taps are one layer too {direction}")
    assert f"is taps {list(right)} instead of {list(declared)}" in wrong.verdict()


def test_no_reading_is_named_for_a_draft_of_random_weights(
    texts: list[Text], tmp_path: Path
) -> None:
    found = diagnosed(write_tiny_draft(tmp_path), texts)
    assert not found.holds
    assert found.right_reading is None
    assert found.verdict().startswith("no other reading helps")


def test_the_declared_readings_accept_length_is_that_of_serving(
    texts: list[Text], well_read: Path
) -> None:
    built = tiny_engine(target=new_target(), draft_folder=well_read)
    run_all(built, greedy_requests(PROMPTS, NEW_TOKENS))
    served = built.engine.snapshot()
    declared = diagnosed(well_read, texts).declared
    served_length = 1 + served.num_accepted_tokens / served.num_rounds
    assert declared.accept_length == pytest.approx(served_length, abs=0.4)


@pytest.mark.parametrize("texts_", [[], [Text((1, 2), (3,))]])
def test_texts_without_room_for_a_block_give_no_diagnosis(
    texts_: list[Text], tmp_path: Path
) -> None:
    target = new_target()
    draft = load_tiny_draft(write_tiny_draft(tmp_path), target)
    assert try_readings(target, draft, texts_, device=CPU) is None
