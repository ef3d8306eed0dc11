"""training.start: auto takes the start whose losses are smaller after a few steps."""

import json
import logging
from pathlib import Path

import pytest
import torch

from draft import DSparkNetwork
from dspark.training.model.start_network import Start
from dspark.training.run import start_choice
from dspark.training.run.recipe import Recipe
from dspark.training.run.start_choice import choose_start
from tests.support.engine.tiny_models import CPU

RECIPE = Recipe(epochs=1, sequences_per_step=4)


@pytest.mark.parametrize(("target", "scratch", "better"), [(2.0, 1.5, "scratch"), (1, 2, "target")])
def test_the_smaller_loss_wins_and_both_are_logged(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    target: float,
    scratch: float,
    better: str,
) -> None:
    losses = {"target": target, "scratch": scratch}
    monkeypatch.setattr(start_choice, "_last_loss", lambda network, *rest: losses[network])
    caplog.set_level(logging.INFO)
    assert choose(tmp_path, {"seed": 1}) == better
    assert f"auto takes {better}" in caplog.text
    assert json.loads((tmp_path / "start.json").read_text())["losses"] == losses


def test_the_choice_is_kept_for_the_same_training_and_made_anew_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Start] = []

    def build(start: Start) -> DSparkNetwork:
        built.append(start)
        return start  # type: ignore[return-value]

    monkeypatch.setattr(start_choice, "_last_loss", lambda network, *rest: len(network))
    for identity, count in (({"seed": 1}, 2), ({"seed": 1}, 2), ({"seed": 2}, 4)):
        found = choose_start(
            build,
            [0] * 9,
            RECIPE,
            folder=tmp_path,
            identity=identity,
            device=CPU,  # type: ignore
        )
        assert found == "target"
        assert len(built) == count


def choose(folder: Path, identity: dict[str, object]) -> Start:
    return choose_start(
        lambda start: start,  # type: ignore[arg-type,return-value]
        [torch.zeros(1)] * 9,  # type: ignore[arg-type]
        RECIPE,
        folder=folder,
        identity=identity,
        device=CPU,
    )
