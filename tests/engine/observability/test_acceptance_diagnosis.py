"""A good draft that is read wrongly is found out, and what is wrong is named."""

import asyncio
import json
import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from engine import EngineConfig, EngineSamplingParams, EngineSnapshot, Request
from engine.build import Built, build_engine
from engine.core.worker import EngineWorker
from engine.loading.target import LoadedTarget
from engine.observability.acceptance_diagnosis import explain_collapse, try_readings
from engine.observability.acceptance_monitor import AcceptanceMonitor
from engine.observability.step_observer import RecentTexts, RecordedText
from tests.support.engine.overfitted import declare, write_overfitted_draft
from tests.support.engine.running import generate_alone, greedy_requests, prompts, run_all
from tests.support.engine.tiny_models import CPU, VOCAB, tiny_engine, tiny_target, write_tiny_draft

NEW_TOKENS = 40
ASKED = prompts(3, vocab=VOCAB, low=6, high=12)


def new_target() -> LoadedTarget:
    return tiny_target(has_eos=False)


@pytest.fixture(scope="module")
def texts() -> list[list[int]]:
    target = new_target()
    return [prompt + generate_alone(target, prompt, NEW_TOKENS) for prompt in ASKED]


@pytest.fixture(scope="module")
def well_read(texts: list[list[int]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of native slots, with taps 0, 2 and 3, and declared so."""
    folder = tmp_path_factory.mktemp("draft")
    return write_overfitted_draft(folder, new_target(), texts, taps=(0, 2, 3), samples=True)


@dataclass(frozen=True, slots=True)
class Observed:
    built: Built
    accept_length: float
    diagnosis: str


def serve(folder: Path) -> Observed:
    """The same prompts served for real; what the engine would say about its draft."""
    recorder = RecentTexts()
    built = tiny_engine(target=new_target(), draft_folder=folder, recorder=recorder)
    run_all(built, greedy_requests(ASKED, NEW_TOKENS))
    snapshot = built.engine.snapshot()
    assert built.draft is not None
    with torch.inference_mode():
        said = explain_collapse(built.target, built.draft, recorder.texts(), device=CPU)
    assert said is not None
    return Observed(built, 1 + snapshot.num_accepted_tokens / snapshot.num_rounds, said)


@pytest.mark.parametrize("samples", [True, False])
def test_the_wrong_slot_convention_is_named(
    samples: bool, texts: list[list[int]], well_read: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(well_read, tmp_path / "draft")
    if not samples:
        write_overfitted_draft(folder, new_target(), texts, taps=(0, 2, 3), samples=False)
    right = serve(folder)
    assert right.accept_length > 2.5
    assert "Likely cause: " not in right.diagnosis
    declare(folder, sample_from_anchor=not samples)
    wrong = serve(folder)
    assert wrong.accept_length < 1.3
    assert wrong.diagnosis.startswith("Likely cause: its slots follow the other convention")
    assert f"Try sample_from_anchor: {json.dumps(samples)} in its config.json" in wrong.diagnosis


@pytest.mark.parametrize(
    ("trained", "declared", "words"),
    [((0, 2, 3), (-1, 1, 2), "one layer too low"), ((0, 1, 2), (1, 2, 3), "one layer too high")],
)
def test_shifted_taps_are_named(
    trained: tuple[int, ...],
    declared: tuple[int, ...],
    words: str,
    texts: list[list[int]],
    well_read: Path,
    tmp_path: Path,
) -> None:
    folder = shutil.copytree(well_read, tmp_path / "draft")
    if trained != (0, 2, 3):
        write_overfitted_draft(folder, new_target(), texts, taps=trained, samples=True)
    declare(folder, target_layer_ids=list(declared))
    wrong = serve(folder)
    assert wrong.accept_length < 1.5
    assert wrong.diagnosis.startswith(f"Likely cause: its taps are {words}")
    assert f"Try taps {list(trained)} instead of {list(declared)}" in wrong.diagnosis


def test_a_draft_that_is_merely_bad_is_not_explained_away(tmp_path: Path) -> None:
    found = serve(write_tiny_draft(tmp_path))
    assert found.accept_length < 1.3
    assert found.diagnosis.startswith("Neither the other slot convention nor taps")
    assert "trained for another target" in found.diagnosis


def test_as_declared_a_trial_is_worth_what_serving_was(
    texts: list[list[int]], well_read: Path
) -> None:
    """The trial runs what the engine runs: a draft of no faults has the same accept length."""
    observed = serve(well_read)
    built = observed.built
    assert built.draft is not None
    recorded = [RecordedText(tuple(t), len(p)) for t, p in zip(texts, ASKED, strict=True)]
    with torch.inference_mode():
        declared, *_ = try_readings(built.target, built.draft, recorded, device=CPU)
    assert declared.accept_length == pytest.approx(observed.accept_length, abs=0.4)


def test_a_diagnosis_changes_nothing_of_the_engine(texts: list[list[int]], tmp_path: Path) -> None:
    write_overfitted_draft(tmp_path, new_target(), texts, taps=(0, 2, 3), samples=True)
    built = serve(tmp_path).built
    again = run_all(built, greedy_requests(ASKED, NEW_TOKENS))
    assert [ASKED[i] + again[str(i)][0] for i in range(3)] == texts
    assert again["0"][1].speculation.mean_accept_length > 2.5
    assert built.engine.context_kv_status().path == "stacked"


def test_without_text_nothing_is_tried(tmp_path: Path) -> None:
    built = tiny_engine(draft_folder=write_tiny_draft(tmp_path))
    assert built.draft is not None
    assert try_readings(built.target, built.draft, [], device=CPU) == []
    short = [RecordedText((1, 2, 3), 2)]
    assert explain_collapse(built.target, built.draft, short, device=CPU) is None


def test_the_watch_says_what_the_diagnosis_found(caplog: pytest.LogCaptureFixture) -> None:
    watch = AcceptanceMonitor(diagnose=lambda: "Likely cause: the moon.", window_rounds=10)
    watch(_snapshot(10))
    (record,) = caplog.records
    assert record.getMessage().endswith("Likely cause: the moon.")


@pytest.mark.parametrize("fails", [False, True])
def test_a_diagnosis_without_result_leaves_the_list_of_causes(
    fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def diagnose() -> None:
        if fails:
            raise MemoryError("no room")

    watch = AcceptanceMonitor(diagnose=diagnose, window_rounds=10)
    with caplog.at_level(logging.WARNING):
        watch(_snapshot(10))
    assert "Likely causes, in this order" in caplog.records[-1].getMessage()
    assert len(caplog.records) == 1 + fails


def test_a_built_engine_diagnoses_by_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    new_target().model.save_pretrained(tmp_path / "target")  # type: ignore[operator]
    config = EngineConfig(
        target=str(tmp_path / "target"),
        draft=str(write_tiny_draft(tmp_path / "draft")),
        draft_budget="always",  # else such a draft is soon not asked any more
        num_pages=64,
        num_threads=1,
    )
    engine = build_engine(config)
    params = EngineSamplingParams(max_new_tokens=225, ignore_eos=True)
    try:
        asyncio.run(_consume(engine, Request("a", tuple(ASKED[0]), params)))
    finally:
        engine.close()
    (warning,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert "acceptance has collapsed: mean accept length 1." in warning
    assert "Neither the other slot convention nor taps one layer off explain it" in warning


async def _consume(engine: EngineWorker, request: Request) -> None:
    await engine.generate(request, lambda _: None)


def _snapshot(rounds: int) -> EngineSnapshot:
    return EngineSnapshot(num_rounds=rounds, num_accepted_tokens=0)
