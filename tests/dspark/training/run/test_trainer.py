"""An interrupted training resumes bitwise equal."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dspark.training.errors import TrainingError
from dspark.training.model.blocks import MicroBatch
from dspark.training.model.forward import forward_blocks
from dspark.training.model.initialising import TargetWeights, new_network, with_draft_vocabulary
from dspark.training.run.checkpoints import Checkpoints
from dspark.training.run.recipe import Recipe
from dspark.training.run.trainer import Trainer, losses_of
from dspark.training.run.validation import validate
from tests.support.draft.tiny import CONFIG, CPU, random_network, tiny_config
from tests.support.full_disk import room_for
from tests.support.training.sequences import examples_of, tiny_head

RECIPE = Recipe(epochs=4, sequences_per_step=4, sequences_per_micro_batch=2, num_anchors=5, seed=7)
IDENTITY = {"recipe.epochs": 4, "design.block_size": 4}


def trainer(recipe: Recipe = RECIPE, **changes: object) -> Trainer:
    config = tiny_config(**changes)
    embedding = tiny_head(config)
    kept_ids = None
    if config.draft_vocab_size is not None:
        kept_ids = torch.arange(0, 2 * config.draft_vocab_size, 2)
    network = new_network(
        config,
        embedding=embedding,
        lm_head=embedding,
        start=None,
        max_positions=32,
        seed=1,
        device=CPU,
        kept_ids=kept_ids,
    )
    return Trainer(network=network, examples=examples_of(config), recipe=recipe, device=CPU)


@pytest.mark.parametrize(
    "changes", [{}, {"markov_kind": "rnn"}, {"draft_vocab_size": 20}], ids=["", "rnn", "reduced"]
)
def test_a_resumed_training_equals_an_uninterrupted_one(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    complete = trainer(**changes)
    reports = [complete.train_step() for _ in range(complete.num_steps)]

    checkpoints = Checkpoints(folder=tmp_path, identity=IDENTITY)
    killed = trainer(**changes)
    for _ in range(3):
        killed.train_step()
    checkpoints.save(killed.state(), step=killed.step)
    killed.train_step()  # what came after the checkpoint is lost

    resumed = trainer(**changes)
    state = Checkpoints(folder=tmp_path, identity=IDENTITY).load_newest()
    assert state is not None
    resumed.restore(state)
    assert [resumed.train_step() for _ in range(resumed.num_steps - 3)] == reports[3:]
    ends = zip(complete.network.named_parameters(), resumed.network.named_parameters(), strict=True)
    for (name, one), (_, other) in ends:
        assert torch.equal(one, other), name


def test_an_epoch_visits_every_sequence_and_epochs_differ() -> None:
    run = trainer()
    epochs = [[i for step in (a, a + 1) for i in run._indices(step)] for a in (0, 2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(6))
    assert epochs[0] != epochs[1]


def test_micro_batches_of_any_size_give_the_same_gradients() -> None:
    one, all_at_once = trainer(), trainer(replace(RECIPE, sequences_per_micro_batch=4))
    first, second = one.train_step(), all_at_once.train_step()
    assert first.loss == pytest.approx(second.loss, rel=1e-5)
    assert first.gradient_norm == pytest.approx(second.gradient_norm, rel=1e-4)


def test_embedding_and_head_are_not_trained() -> None:
    run = trainer()
    before = run.network.embed_tokens.weight.clone()
    run.train_step()
    assert torch.equal(run.network.embed_tokens.weight, before)
    assert run.network.lm_head.weight is not None
    assert not run.network.embed_tokens.weight.requires_grad
    assert "embed_tokens.weight" not in run.state()["parameters"]


def test_losses_fall_and_held_out_acceptance_is_measured() -> None:
    run = trainer(replace(RECIPE, epochs=20, learning_rate=5e-3))
    reports = [run.train_step() for _ in range(run.num_steps)]
    assert reports[-1].cross_entropy < 0.5 * reports[0].cross_entropy
    found = validate(run.network, examples_of(CONFIG), RECIPE, device=CPU)
    assert len(found.acceptance) == CONFIG.block_size
    assert 1 < found.accept_length < 1 + CONFIG.block_size
    assert found.num_sequences == 6
    assert found == validate(run.network, examples_of(CONFIG), RECIPE, device=CPU)


def test_a_reduced_vocabulary_trains_and_its_acceptance_is_bounded() -> None:
    run = trainer(replace(RECIPE, epochs=40, learning_rate=5e-3), draft_vocab_size=20)
    reports = [run.train_step() for _ in range(run.num_steps)]
    assert reports[-1].cross_entropy < 0.5 * reports[0].cross_entropy
    examples = examples_of(run.network.config)
    batch = MicroBatch.of(
        [examples.example(0)], [torch.arange(5, 13)], block_size=run.network.config.block_size
    )
    with torch.no_grad():
        found = losses_of(run.network, batch, autocast=False)
    p = torch.softmax(batch.target_hidden.float() @ tiny_head(CONFIG).T, dim=-1)
    covered = p[..., run.network.vocabulary.target_ids].sum(-1)  # type: ignore[union-attr]
    assert (found.acceptance <= covered + 1e-5).all()
    assert covered.min() < 0.5 < covered.max()


def test_autocast_keeps_parameters_in_float32() -> None:
    exact, rough = trainer(), trainer(replace(RECIPE, autocast=True))
    assert rough.train_step().loss == pytest.approx(exact.train_step().loss, rel=0.05)
    assert {p.dtype for p in rough.network.parameters()} == {torch.float32}


def test_a_network_starts_as_the_target_where_shapes_agree() -> None:
    embedding = torch.randn(CONFIG.vocab_size, CONFIG.hidden_size)
    size = CONFIG.hidden_size
    layers = [
        {
            "self_attn.q_proj.weight": torch.full((32, size), 1.0 + i),
            "mlp.up_proj.weight": embedding,
        }
        for i in range(CONFIG.num_layers)
    ]
    network = new_network(
        CONFIG,
        embedding=embedding,
        lm_head=embedding,
        start=TargetWeights(layers=layers, final_norm=torch.full((size,), 3.0)),
        max_positions=32,
        seed=0,
        device=CPU,
    )
    assert torch.equal(
        network.attentions[1].q_proj.get_parameter("weight"), torch.full((32, size), 2.0)
    )
    assert network.norm.weight.tolist() == [3.0] * size
    assert set(network.attentions[0].k_norm.weight.tolist()) == {1.5}
    assert set(network.hidden_norm.weight.tolist()) == {1.0}
    taps = torch.randn(5, CONFIG.aux_size)
    fc = network.fc.get_parameter("weight")
    assert torch.equal(fc[:, -size:], torch.eye(size))
    assert network.embed_tokens.weight.data_ptr() == embedding.data_ptr()
    assert network.project_taps(taps).shape == (5, size)


def test_a_reduced_draft_keeps_the_logits_of_its_tokens() -> None:
    whole = random_network(CONFIG)
    kept_ids = torch.arange(1, CONFIG.vocab_size, 3)
    reduced = with_draft_vocabulary(whole, kept_ids, max_positions=64)
    example = examples_of(CONFIG).example(0)
    batch = MicroBatch.of([example], [torch.tensor([6, 9])], block_size=CONFIG.block_size)
    with torch.no_grad():
        before, after = forward_blocks(whole, batch), forward_blocks(reduced, batch)
    torch.testing.assert_close(after.logits, before.logits[..., kept_ids])
    torch.testing.assert_close(after.confidence_logits, before.confidence_logits)


def test_another_configuration_is_refused_by_field(tmp_path: Path) -> None:
    Checkpoints(folder=tmp_path, identity=IDENTITY).save({"step": 1}, step=1)
    other = Checkpoints(folder=tmp_path, identity={**IDENTITY, "design.block_size": 7})
    with pytest.raises(TrainingError, match=r"design.block_size: found 7; accepted: 4"):
        other.load_newest()


def test_a_full_disk_leaves_the_old_checkpoint_only(tmp_path: Path) -> None:
    checkpoints = Checkpoints(folder=tmp_path, identity=IDENTITY)
    checkpoints.save({"step": 1}, step=1)
    with room_for(10_000), pytest.raises(OSError, match=r"too large: .*step-00000002.pt"):
        checkpoints.save({"step": 2, "weight": torch.zeros(100_000)}, step=2)
    assert [file.name for file in tmp_path.iterdir()] == ["step-00000001.pt"]
    assert checkpoints.load_newest() == {"step": 1}


def test_a_broken_checkpoint_is_named(tmp_path: Path) -> None:
    (tmp_path / "step-00000009.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(TrainingError, match=r"step-00000009.pt: cannot be read"):
        Checkpoints(folder=tmp_path, identity=IDENTITY).load_newest()


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(folder=tmp_path, identity=IDENTITY)
    for step in range(5):
        checkpoints.save({"step": step}, step=step)
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "step-00000003.pt",
        "step-00000004.pt",
    ]
