"""A signal ends `dspark train` quietly in each of its stages, and the same command goes on."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dspark.training.run import own_prompt_stage, pipeline
from dspark.training.run.stages import timed_stage
from tests.support.server.tiny_pair import TinyPair
from tests.support.training.command import train, write_config

STAGES = ["answers", "hidden states", "start", "training", "evaluation"]


@pytest.mark.parametrize("stage", STAGES)
def test_a_termination_says_how_to_go_on_and_the_same_command_does(
    pair: TinyPair,
    tmp_path: Path,
    stage: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = write_config(tmp_path, pair, training__max_steps=2)
    _terminate_in(stage, monkeypatch)
    with pytest.raises(SystemExit) as ended:
        train(config)
    assert ended.value.code == 143
    err = capsys.readouterr().err
    holds = f"the same command goes on with what {tmp_path / 'out'} holds"
    assert err.splitlines()[-1] == f"dspark train: stopped; {holds}"
    assert "Traceback" not in err
    monkeypatch.undo()
    assert train(config) == 0
    assert (tmp_path / "out" / "draft" / "config.json").exists()


def test_a_terminated_process_has_the_exit_code_and_no_traceback(
    pair: TinyPair, tmp_path: Path
) -> None:
    config = write_config(tmp_path, pair, training__epochs=10_000)
    command = [sys.executable, "-m", "dspark", "train", "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "training steps ..." in line:
                process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    assert lines[-1].startswith("dspark train: stopped; the same command goes on")
    assert "Traceback" not in "".join(lines)


def _terminate_in(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def terminated(name: str) -> Iterator[None]:
        with timed_stage(name):
            if name == stage:
                os.kill(os.getpid(), signal.SIGTERM)
            yield

    for module in (pipeline, own_prompt_stage):
        monkeypatch.setattr(module, "timed_stage", terminated)
