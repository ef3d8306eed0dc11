"""A compiled training step says what a plain one says, or is not taken."""

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
from dspark.training.model.compiling import compile_guesses
from dspark.training.model.forward import BlockGuesses, GuessBlocks, guess_blocks
from dspark.training.run.recipe import Recipe
from dspark.training.run.trainer import Trainer, trial_batch
from tests.support.draft.tiny import CONFIG, CPU
from tests.support.paths import ROOT
from tests.support.training.sequences import examples_of, tiny_network

RECIPE = Recipe(epochs=1, sequences_per_step=3, sequences_per_micro_batch=2, num_anchors=5, seed=7)


def trial() -> MicroBatch:
    return trial_batch(examples_of(CONFIG), RECIPE, block_size=CONFIG.block_size)


class Compiled:
    """What a compiler might make: right, but for what it is told to do wrong."""

    def __init__(self, *, scale: float = 1.0, dies_after: int | None = None) -> None:
        self._scale = scale
        self._dies_after = dies_after
        self.num_calls = 0

    def __call__(self, network: DSparkNetwork, batch: MicroBatch) -> BlockGuesses:
        if self.num_calls == self._dies_after:
            raise RuntimeError("no compiler here\nand much more")
        self.num_calls += 1
        found = guess_blocks(network, batch)
        return BlockGuesses(self._scale * found.logits, found.confidence_logits)


def compiled_with(compiled: Compiled, network: DSparkNetwork) -> GuessBlocks:
    return compile_guesses(network, trial(), autocast=False, compiler=lambda guess: compiled)


def test_lengths_of_every_kind_are_compiled_a_few_times_and_say_the_same() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "tests.support.training.compiled_lengths"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(found.stdout)
    assert told["is_compiled"]
    assert 1 <= told["num_compiled"] <= 3
    assert told["difference"] < 1e-5


def test_what_says_the_same_takes_the_steps_of_the_training(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plain, own, compiled = tiny_network(CONFIG), tiny_network(CONFIG), Compiled()
    with caplog.at_level(logging.INFO):
        guess = compiled_with(compiled, own)
    assert "training is compiled" in caplog.text
    assert all(parameter.grad is None for parameter in own.parameters())
    one = Trainer(network=plain, examples=examples_of(CONFIG), recipe=RECIPE, device=CPU)
    other = Trainer(
        network=own, examples=examples_of(CONFIG), recipe=RECIPE, device=CPU, guess=guess
    )
    for _ in range(one.num_steps):
        assert one.train_step() == other.train_step()
    assert compiled.num_calls == 1 + 2 * one.num_steps  # the trial, two micro-batches a step


def test_what_does_not_compile_runs_as_it_is_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    network = tiny_network(CONFIG)
    assert compiled_with(Compiled(dies_after=0), network) is guess_blocks
    assert "training is not compiled: no compiler here" in caplog.text
    assert all(parameter.grad is None for parameter in network.parameters())


def test_what_compiles_to_something_else_is_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    assert compiled_with(Compiled(scale=1.1), tiny_network(CONFIG)) is guess_blocks
    assert "the compiled pass differs by" in caplog.text


@pytest.mark.parametrize(("compiled_s", "is_taken"), [(0.8, True), (0.99, False), (1.5, False)])
def test_where_it_is_timed_only_a_form_that_is_faster_is_taken(
    caplog: pytest.LogCaptureFixture, compiled_s: float, is_taken: bool
) -> None:
    network, compiled = tiny_network(CONFIG), Compiled()

    def stopwatch(run: Callable[[], object]) -> float:
        calls = compiled.num_calls
        run()
        return compiled_s if compiled.num_calls > calls else 1.0

    with caplog.at_level(logging.INFO):
        guess = compile_guesses(
            network,
            trial(),
            autocast=False,
            compiler=lambda guess: compiled,
            stopwatch=stopwatch,
        )
    assert (guess is not guess_blocks) == is_taken
    assert (f"{1000 * compiled_s:.1f} ms compiled and 1000.0 ms plain" in caplog.text) != is_taken
    assert all(parameter.grad is None for parameter in network.parameters())


def test_a_form_that_fails_later_is_given_up_and_the_training_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    network, compiled = tiny_network(CONFIG), Compiled(dies_after=2)
    guess, batch = compiled_with(compiled, network), trial()
    for _ in range(3):
        torch.testing.assert_close(
            guess(network, batch).logits, guess_blocks(network, batch).logits
        )
    assert compiled.num_calls == 2
    assert [record.message for record in caplog.records] == [
        "training goes on without its compiled form: RuntimeError"
    ]
