"""Decoder families of transformers are served exactly, or refused with the reason."""

from dataclasses import replace

import pytest

from engine.errors import LoadError
from engine.loading.servable import refuse_unfollowed_fields
from engine.model_setup.target_check import probe_shapes, run_alone
from engine.runner.hf_attention import IMPLEMENTATION
from tests.support.engine import models_table
from tests.support.engine.families import FAMILIES, VOCAB, WINDOW
from tests.support.engine.running import generate_alone, greedy_requests, run_all
from tests.support.engine.tiny_models import CPU, tiny_engine

SERVED = [name for name, family in FAMILIES.items() if family.refusal is None]
REFUSED = [name for name, family in FAMILIES.items() if family.refusal is not None]
PROMPT = [5, 7, 11, 2, 9] * 4
NEW_TOKENS = WINDOW


@pytest.mark.parametrize("name", SERVED)
def test_a_family_gives_the_tokens_of_transformers_past_its_window(name: str) -> None:
    family = FAMILIES[name]
    expected = generate_alone(family.target(), PROMPT, NEW_TOKENS)
    found = run_all(tiny_engine(target=family.target()), greedy_requests([PROMPT], NEW_TOKENS))
    assert found["0"][0] == expected


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_family_is_refused_with_its_reason(name: str) -> None:
    family = FAMILIES[name]
    assert family.refusal is not None
    with pytest.raises(LoadError, match=family.refusal):
        tiny_engine(target=family.target())


@pytest.mark.parametrize("name", ["Qwen 2 MoE", "PhiMoE"])
def test_a_window_that_only_a_mask_applies_is_exceeded_by_the_check(name: str) -> None:
    target = FAMILIES[name].target()
    target.model.set_attn_implementation(IMPLEMENTATION)  # type: ignore[operator]
    probe = probe_shapes(target, CPU)
    assert set(probe.masked.values()) == {WINDOW}
    reference = run_alone(target.model, probe=probe, tap_layers=(), vocab_size=VOCAB)
    assert len(reference.ids) > WINDOW


def test_the_list_of_families_is_fresh() -> None:
    assert models_table.FILE.read_text() == models_table.table(), "stale: run make docs"


def test_a_field_that_is_not_followed_is_refused() -> None:
    config = FAMILIES["Llama"].config()
    config.attention_window_size = 64
    with pytest.raises(LoadError, match="restricts its attention by attention_window_size=64"):
        refuse_unfollowed_fields(config)


def test_a_mask_too_large_to_be_checked_is_refused_past_its_length() -> None:
    target = replace(FAMILIES["PhiMoE"].target(), max_len=5000)
    target.model.config.sliding_window = 4096  # type: ignore[union-attr]
    target.model.set_attn_implementation(IMPLEMENTATION)  # type: ignore[operator]
    with pytest.raises(LoadError, match=r"accepted: model\.max_model_len up to 4096"):
        probe_shapes(target, CPU)


def test_a_softcap_that_layers_do_not_pass_is_refused() -> None:
    target = FAMILIES["Llama"].target()
    target.model.config.attn_logit_softcapping = 50.0  # type: ignore[union-attr]
    target.model.set_attn_implementation(IMPLEMENTATION)  # type: ignore[operator]
    with pytest.raises(LoadError, match=r"names attn_logit_softcapping=50\.0"):
        probe_shapes(target, CPU)
