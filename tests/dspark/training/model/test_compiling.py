"""A compiled training step computes what a plain one does, or is not used."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from draft import DSparkNetwork
from dspark.training.model.blocks import MicroBatch
from dspark.training.model.compiling import compile_forward
from dspark.training.model.forward import BlockOutput, ForwardBlocks, forward_blocks
from dspark.training.run.recipe import Recipe
from dspark.training.run.trainer import Trainer, trial_batch
from tests.support.draft.tiny import CONFIG, CPU
from tests.support.paths import ROOT
from tests.support.training.sequences import examples_of, tiny_network

RECIPE = Recipe(epochs=1, sequences_per_step=3, sequences_per_micro_batch=2, num_anchors=5, seed=7)


def trial() -> MicroBatch:
    return trial_batch(examples_of(CONFIG), RECIPE, block_size=CONFIG.block_size)


class Compiled:
    """A compiled form with an optional error."""

    def __init__(self, *, scale: float = 1.0, fails_after: int | None = None) -> None:
        self._scale = scale
        self._fails_after = fails_after
        self.num_calls = 0

    def __call__(self, network: DSparkNetwork, batch: MicroBatch) -> BlockOutput:
        if self.num_calls == self._fails_after:
            raise RuntimeError("no compiler here\nand much more")
        self.num_calls += 1
        found = forward_blocks(network, batch)
        return BlockOutput(self._scale * found.logits, found.confidence_logits)


def compiled_with(compiled: Compiled, network: DSparkNetwork) -> ForwardBlocks:
    return compile_forward(network, trial(), autocast=False, compiler=lambda forward: compiled)


def test_many_lengths_compile_a_few_times_and_agree() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "tests.support.training.compiled_lengths"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(process.stdout)
    assert found["is_compiled"]
    assert 1 <= found["num_compiled"] <= 3
    assert found["difference"] < 1e-5


def test_a_form_that_agrees_runs_the_steps(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plain, own, compiled = tiny_network(CONFIG), tiny_network(CONFIG), Compiled()
    with caplog.at_level(logging.INFO):
        forward = compiled_with(compiled, own)
    assert "training is compiled" in caplog.text
    assert all(parameter.grad is None for parameter in own.parameters())
    one = Trainer(network=plain, examples=examples_of(CONFIG), recipe=RECIPE, device=CPU)
    other = Trainer(
        network=own, examples=examples_of(CONFIG), recipe=RECIPE, device=CPU, forward=forward
    )
    for _ in range(one.num_steps):
        assert one.train_step() == other.train_step()
    assert compiled.num_calls == 1 + 2 * one.num_steps  # the trial, two micro-batches a step


def test_an_error_of_the_compiler_is_logged_and_training_runs_uncompiled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    network = tiny_network(CONFIG)
    assert compiled_with(Compiled(fails_after=0), network) is forward_blocks
    assert "training is not compiled: no compiler here" in caplog.text
    assert all(parameter.grad is None for parameter in network.parameters())


def test_a_form_that_differs_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    assert compiled_with(Compiled(scale=1.1), tiny_network(CONFIG)) is forward_blocks
    assert "the compiled pass differs by" in caplog.text


@pytest.mark.parametrize(("compiled_s", "is_used"), [(0.8, True), (0.99, False), (1.5, False)])
def test_with_a_stopwatch_only_a_faster_form_is_used(
    caplog: pytest.LogCaptureFixture, compiled_s: float, is_used: bool
) -> None:
    network, compiled = tiny_network(CONFIG), Compiled()

    def stopwatch(run: Callable[[], object]) -> float:
        calls = compiled.num_calls
        run()
        return compiled_s if compiled.num_calls > calls else 1.0

    with caplog.at_level(logging.INFO):
        forward = compile_forward(
            network,
            trial(),
            autocast=False,
            compiler=lambda forward: compiled,
            stopwatch=stopwatch,
        )
    assert (forward is not forward_blocks) == is_used
    assert (f"{1000 * compiled_s:.1f} ms compiled and 1000.0 ms plain" in caplog.text) != is_used
    assert all(parameter.grad is None for parameter in network.parameters())


def test_a_form_that_fails_later_is_replaced_and_training_continues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    network, compiled = tiny_network(CONFIG), Compiled(fails_after=2)
    forward, batch = compiled_with(compiled, network), trial()
    for _ in range(3):
        torch.testing.assert_close(
            forward(network, batch).logits, forward_blocks(network, batch).logits
        )
    assert compiled.num_calls == 2
    assert [record.message for record in caplog.records] == [
        "training continues uncompiled: RuntimeError"
    ]
