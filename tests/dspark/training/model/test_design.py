"""The shape of a draft follows the target, and invalid shapes are refused."""

import pytest
import torch

from draft import LayerConfig
from draft.config import gemma4_variant
from draft.network.network import cap_logits
from dspark.training.config import DesignConfig
from dspark.training.data.examples import TokenSequence
from dspark.training.data.hidden_states import HiddenStateReader
from dspark.training.model.design import (
    choose_taps,
    decoder_variant,
    design_draft,
    frequent_token_ids,
    unused_token_id,
)
from dspark.training.model.initialising import new_network
from dspark.training.model.target_layers import last_layers
from engine.errors import LoadError
from engine.loading.target import by_transformers_alone, dense_reference
from tests.support.engine.tiny_models import CPU, HIDDEN, VOCAB, tiny_target


def test_taps_are_spread_from_layer_1_to_the_third_from_the_end() -> None:
    assert choose_taps(DesignConfig(num_taps=5), num_layers=30) == (1, 8, 14, 20, 27)
    assert choose_taps(DesignConfig(num_taps=5), num_layers=36) == (1, 9, 17, 25, 33)
    assert choose_taps(DesignConfig(num_taps=1), num_layers=5) == (2,)


def test_a_target_without_enough_layers_is_refused() -> None:
    with pytest.raises(LoadError, match=r"5 taps do not fit a target of 5 layers"):
        choose_taps(DesignConfig(num_taps=5), num_layers=5)
    with pytest.raises(LoadError, match=r"design.tap_layers: .*cannot be tapped"):
        choose_taps(DesignConfig(tap_layers=(0, 4)), num_layers=5)


def test_a_draft_has_the_shape_of_its_target_by_default() -> None:
    target = tiny_target("qwen3")
    config = design_draft(DesignConfig(num_taps=2), target, mask_token_id=3)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 2, 16)
    assert (config.hidden_size, config.vocab_size) == (HIDDEN, VOCAB)
    assert (config.intermediate_size, config.mask_token_id) == (64, 3)
    plain = DesignConfig(num_taps=2, markov_head="none", intermediate_size=40)
    other = design_draft(plain, target, mask_token_id=3)
    assert (other.markov_rank, other.confidence_with_markov) == (0, False)
    assert other.intermediate_size == 40


def test_a_draft_of_a_gemma4_target_has_the_heads_and_the_decoder_of_its_global_layers() -> None:
    target = tiny_target("gemma4")
    config = design_draft(DesignConfig(num_taps=2), target, mask_token_id=3)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 1, 32)
    assert config.layers == (LayerConfig(rope_theta=1e6, rotary_fraction=0.25),) * 2
    assert config.variant == gemma4_variant(shares_kv=True, logit_cap=20.0)
    config = design_draft(DesignConfig(num_taps=2, num_layers=3), target, mask_token_id=3)
    start = last_layers(target, config)
    expected = [target.parts.layers[i].get_parameter("mlp.up_proj.weight") for i in (1, 3, 4)]
    for layer, weight in zip(start.layers, expected, strict=True):
        assert torch.equal(layer["mlp.up_proj.weight"], weight)


@pytest.mark.parametrize("name", ["qwen3", "gemma3", "gemma4"])
def test_norms_of_a_start_are_the_factors_that_the_target_multiplies_by(name: str) -> None:
    target = tiny_target(name)
    for parameter in target.model.parameters():
        if parameter.dim() == 1:
            parameter.normal_()
    design = DesignConfig(num_taps=2, num_layers=1)
    start = last_layers(target, design_draft(design, target, mask_token_id=3))
    layer = target.parts.layers[3 if name == "gemma3" else -1]  # the last with full attention
    after = {"gemma3": "pre_feedforward_layernorm"}.get(name, "post_attention_layernorm")
    x = torch.randn(HIDDEN)
    names = {"input_layernorm": "input_layernorm", "post_attention_layernorm": after}
    for mine, theirs in names.items():
        factors = start.layers[0][f"{mine}.weight"]
        found = torch.nn.functional.rms_norm(x, (HIDDEN,), factors, 1e-6)
        torch.testing.assert_close(found, layer.get_submodule(theirs)(x), atol=1e-4, rtol=1e-4)


def test_a_start_with_scaled_attention_has_the_usual_scores() -> None:
    target = tiny_target("gemma4")
    config = design_draft(DesignConfig(num_taps=2), target, mask_token_id=3)
    network = new_network(
        config,
        embedding=target.parts.embedding.get_parameter("weight"),
        lm_head=target.parts.lm_head.get_parameter("weight"),
        start=None,
        max_positions=64,
        seed=0,
        device=CPU,
    )
    for layer in network.layers:
        assert layer.layer_scalar.tolist() == [1.0]
        assert torch.allclose(layer.self_attn.q_norm.weight, torch.tensor(32**-0.5))


@pytest.mark.parametrize(
    ("design", "field"),
    [
        (DesignConfig(num_taps=2, num_kv_heads=3), "num_kv_heads"),
        (DesignConfig(num_taps=2, head_dim=7), "head_dim"),
    ],
)
def test_heads_that_cannot_be_built_are_refused(design: DesignConfig, field: str) -> None:
    with pytest.raises(LoadError, match=f"design.{field}: found"):
        design_draft(design, tiny_target(), mask_token_id=0)


def test_the_mask_is_the_last_unused_token() -> None:
    assert unused_token_id([(1, 5), (4,)], vocab_size=6) == 3
    with pytest.raises(LoadError, match=r"design.mask_token_id: every token occurs"):
        unused_token_id([(0, 1)], vocab_size=2)


def test_a_reduced_vocabulary_has_frequent_tokens_and_every_end() -> None:
    answers = [(5, 5, 5, 2), (2, 5, 9), (9, 2, 7)]
    kept_ids = frequent_token_ids(answers, size=4, always=[11], vocab_size=12)
    assert kept_ids.tolist() == [2, 5, 9, 11]
    everything = frequent_token_ids(answers, size=12, always=[11], vocab_size=12)
    assert everything.tolist() == list(range(12))


@pytest.mark.parametrize("size", [1, 13])
def test_an_invalid_vocabulary_size_is_refused(size: int) -> None:
    with pytest.raises(LoadError, match=rf"design.draft_vocab_size: found {size}; accepted: 2 to"):
        frequent_token_ids([(1, 2)], size=size, always=[3, 4], vocab_size=12)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", "gemma4", "mistral_window"])
def test_hidden_states_are_those_of_transformers(name: str) -> None:
    target = tiny_target(name)
    cap = decoder_variant(target).logit_cap
    ids, prompt = torch.arange(3, 23), 6
    with by_transformers_alone(target.model, "sdpa"):
        reader = HiddenStateReader(target=target, tap_layers=(-1, 1, 3), device=CPU, logit_cap=cap)
        reader.refuse_other_heads()
        found = reader(TokenSequence(tuple(ids.tolist()), prompt))
    logits, taps = dense_reference(target.model, (-1, 1, 3), ids[None])
    torch.testing.assert_close(found.taps, taps, atol=1e-4, rtol=1e-4)
    head = target.parts.lm_head.get_parameter("weight")
    torch.testing.assert_close(cap_logits(found.final @ head.T, cap), logits, atol=1e-4, rtol=1e-4)
    expected = torch.logsumexp(logits, dim=-1)[prompt:]
    torch.testing.assert_close(found.log_normaliser[prompt:], expected, atol=1e-4, rtol=1e-4)
    assert found.log_normaliser[:prompt].tolist() == [0] * prompt


def test_a_target_that_caps_its_logits_is_refused() -> None:
    target = tiny_target()

    def capped(module: object, args: object, output: torch.Tensor) -> torch.Tensor:
        return 3 * torch.tanh(output / 3)

    target.parts.lm_head.register_forward_hook(capped)
    with by_transformers_alone(target.model, "sdpa"):
        reader = HiddenStateReader(target=target, tap_layers=(1,), device=CPU)
        with pytest.raises(LoadError, match="applies a scale, a cap or a bias"):
            reader.refuse_other_heads()


def test_a_draft_can_start_with_the_targets_last_layers() -> None:
    target = tiny_target()
    design = DesignConfig(num_taps=2, num_layers=2)
    weights = last_layers(target, design_draft(design, target, mask_token_id=3))
    layers = target.parts.layers
    own = layers[-1].get_parameter("mlp.up_proj.weight")
    assert torch.equal(weights.layers[1]["mlp.up_proj.weight"], own)
    assert weights.final_norm is not None
