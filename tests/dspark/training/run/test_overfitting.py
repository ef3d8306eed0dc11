"""A small draft overfits texts of its target, is exported and served."""

from pathlib import Path

import pytest
from torch import nn

from dspark.bench.draft_quality.accept_lengths import measure_accept_lengths
from dspark.bench.workloads.prompts import EncodedPrompt
from dspark.bench.workloads.trial import Workload
from dspark.training.config import DesignConfig
from dspark.training.data.examples import TokenSequence
from dspark.training.data.feature_store import FeatureStore
from dspark.training.data.hidden_states import HiddenStateReader
from dspark.training.data.sequence_examples import SequenceExamples
from dspark.training.model.design import design_draft
from dspark.training.model.export import export_draft
from dspark.training.model.initialising import new_network
from dspark.training.model.target_layers import last_layers
from dspark.training.run.recipe import Recipe
from dspark.training.run.trainer import Trainer
from dspark.training.run.validation import validate
from engine import EngineSamplingParams
from engine.core.offline import drive
from engine.loading.target import LoadedTarget, by_transformers_alone
from tests.support.bench.runs import silent
from tests.support.engine.running import greedy_requests, prompts
from tests.support.engine.tiny_models import CPU, MASK_ID, VOCAB, tiny_engine, tiny_target

LENGTH = 12
RECIPE = Recipe(
    epochs=70,
    sequences_per_step=16,
    sequences_per_micro_batch=16,
    num_anchors=11,
    learning_rate=1e-2,
    loss_decay=100.0,
    weights_move_from=0.5,
    weights_move_until=0.8,
)


def confident_target(name: str) -> LoadedTarget:
    """A random target with peaked distributions, like trained ones."""
    target = tiny_target(name, has_eos=False)
    head = target.parts.lm_head
    head.weight = nn.Parameter(30 * head.get_parameter("weight"), requires_grad=False)
    if name == "gemma4":
        target.model.config.final_logit_softcapping = 200.0  # logits are that large now
    return target


@pytest.mark.parametrize("name", ["llama", "gemma4"])
def test_a_draft_overfits_its_sequences_and_is_served(name: str, tmp_path: Path) -> None:
    target = confident_target(name)
    prompt_ids = prompts(16, vocab=VOCAB, low=4, high=10)
    runs = drive(
        tiny_engine(target=target).engine, greedy_requests(prompt_ids, LENGTH), concurrency=16
    )
    sequences = [
        TokenSequence((*run.request.prompt_ids, *run.token_ids), len(run.request.prompt_ids))
        for run in runs
    ]
    config = design_draft(
        DesignConfig(block_size=4, num_layers=2, tap_layers=(0, 2, 3), markov_rank=16),
        target,
        mask_token_id=MASK_ID,
    )
    network = new_network(
        config,
        embedding=target.parts.embedding.get_parameter("weight"),
        lm_head=target.parts.lm_head.get_parameter("weight"),
        start=last_layers(target, config),
        max_positions=64,
        seed=0,
        device=CPU,
    )
    with by_transformers_alone(target.model, "sdpa"):
        examples = SequenceExamples(
            sequences=sequences,
            store=FeatureStore(folder=tmp_path / "features", identity="tiny", budget_bytes=1 << 30),
            compute=HiddenStateReader(
                target=target,
                tap_layers=config.tap_layers,
                device=CPU,
                logit_cap=config.variant.logit_cap,
            ),
        )
        examples.fill(lambda done: None)
    trainer = Trainer(network=network, examples=examples, recipe=RECIPE, device=CPU)
    while trainer.step < trainer.num_steps:
        trainer.train_step()
    found = validate(network, examples, RECIPE, device=CPU)
    assert sum(found.acceptance) / len(found.acceptance) > 0.9

    export_draft(network, tmp_path / "draft", more={}, num_target_layers=target.num_layers)
    built = tiny_engine(target=target, draft_folder=tmp_path / "draft")
    workload = Workload(
        tuple(EncodedPrompt("learned", tuple(ids)) for ids in prompt_ids),
        EngineSamplingParams(max_new_tokens=LENGTH),
        8,
    )
    lengths = measure_accept_lengths(built, workload, temperatures=(0.0,), report=silent)
    assert lengths.results[-1].accept_length > 3
