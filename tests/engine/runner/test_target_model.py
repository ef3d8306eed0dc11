"""Unmodified Hugging Face decoders compute the same logits through the paged pool."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import LoadError
from engine.loading.servable import refuse_unservable
from engine.loading.target import (
    LoadedTarget,
    dense_reference,
    describe_target,
    resolve_max_len,
)
from engine.model_setup.target_check import check_target, probe_shapes, run_alone
from engine.runner import hf_attention as attention_hook
from engine.runner.batch import ScheduleBatch, batch_of_rows
from engine.runner.hf_attention import IMPLEMENTATION
from engine.runner.taps import Taps
from engine.runner.target_model import TargetModel
from kv_pool import KVLayout, KVPool, ReferenceAttention
from tests.support.engine.tiny_models import CONFIGS, CPU, LAYERS, VOCAB, tiny_model, tiny_target

TAPS = (-1, 1, 3)
ARCHITECTURES = sorted(CONFIGS)


def _paged(target: LoadedTarget, *, page_size: int, num_pages: int = 64) -> TargetModel:
    target.model.set_attn_implementation(IMPLEMENTATION)  # type: ignore[operator]
    layout = KVLayout(page_size, CPU, target=probe_shapes(target, CPU).layers)
    pool = KVPool(layout, num_pages=num_pages)
    return TargetModel(
        model=target.model,
        tap_layers=TAPS,
        pool=pool,
        attention=ReferenceAttention(page_size=page_size, device=CPU),
        vocab_size=VOCAB,
    )


def _batch(pieces: list[tuple[torch.Tensor, int, int, list[int]]], page_size: int) -> ScheduleBatch:
    """pieces: (ids of the whole sequence, start, stop, page table)."""
    return batch_of_rows(
        [(ids, table, start, stop) for ids, start, stop, table in pieces], page_size=page_size
    )


@pytest.mark.parametrize("name", ARCHITECTURES)
@settings(
    max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_packed_chunked_and_paged_logits_equal_dense_ones(name: str, data: st.DataObject) -> None:
    target = tiny_target(name)
    page_size = data.draw(st.sampled_from([1, 3, 8]))
    lengths = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=3))
    sequences = [torch.randint(0, VOCAB, (n,)) for n in lengths]
    with torch.inference_mode():
        dense = [dense_reference(target.model, TAPS, ids[None]) for ids in sequences]
    num_pages = sum(-(-n // page_size) for n in lengths)
    pages = iter(data.draw(st.permutations(range(num_pages))))
    tables = [[next(pages) for _ in range(-(-n // page_size))] for n in lengths]
    model = _paged(target, page_size=page_size, num_pages=num_pages)

    done = [0] * len(lengths)
    while any(d < n for d, n in zip(done, lengths, strict=True)):
        steps = [
            min(n, d + data.draw(st.integers(1, 12))) for d, n in zip(done, lengths, strict=True)
        ]
        alive = [i for i, n in enumerate(lengths) if done[i] < n]
        with torch.inference_mode():
            output = model.forward(
                _batch([(sequences[i], done[i], steps[i], tables[i]) for i in alive], page_size)
            )
        at = 0
        for i in alive:
            rows = slice(at, at + steps[i] - done[i])
            span = slice(done[i], steps[i])
            torch.testing.assert_close(output.logits[rows], dense[i][0][span], atol=3e-5, rtol=1e-4)
            torch.testing.assert_close(
                output.aux_hidden[rows], dense[i][1][span], atol=3e-5, rtol=1e-4
            )
            at += steps[i] - done[i]
            done[i] = steps[i]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_rejected_rows_do_not_change_later_logits(name: str) -> None:
    target = tiny_target(name)
    ids = torch.randint(0, VOCAB, (24,))
    with torch.inference_mode():
        dense, _ = dense_reference(target.model, TAPS, ids[None])
        model = _paged(target, page_size=4)
        table = list(range(8))
        model.forward(_batch([(ids, 0, 18, table)], 4))
        wrong = torch.cat([ids[:18], torch.randint(0, VOCAB, (6,))])
        model.forward(_batch([(wrong, 18, 24, table)], 4))
        output = model.forward(_batch([(ids, 18, 24, table)], 4))
    torch.testing.assert_close(output.logits, dense[18:], atol=3e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_taps_equal_the_hidden_states_of_their_layers_to_the_bit(name: str) -> None:
    model = tiny_model(name)
    target = describe_target(model, max_len=64, dtype=torch.float32)
    ids = torch.randint(0, VOCAB, (1, 7))
    layer_ids = tuple(range(-1, LAYERS - 1))
    with (
        torch.inference_mode(),
        Taps(
            embedding=target.parts.embedding, layers=target.parts.layers, layer_ids=layer_ids
        ) as taps,
    ):
        output = model(input_ids=ids, use_cache=False, output_hidden_states=True)
        taken = taps.take(7)
    expected = torch.cat([output.hidden_states[i + 1][0] for i in layer_ids], dim=-1)
    assert torch.equal(taken, expected)


def test_two_models_in_one_process_do_not_share_their_attention() -> None:
    first, second = tiny_model("llama"), tiny_model("llama")
    attention_hook.register()
    first.set_attn_implementation(IMPLEMENTATION)  # type: ignore[operator]
    assert second.config._attn_implementation == "eager"  # type: ignore[union-attr]


class _WrongAttention(ReferenceAttention):
    """A backend with an off-by-one error: it ignores the newest key."""

    def plan(self, *, query_lens, kv_lens, page_tables, causal):  # type: ignore[no-untyped-def]
        return super().plan(
            query_lens=query_lens,
            kv_lens=[max(n - 1, q) for n, q in zip(kv_lens, query_lens, strict=True)],
            page_tables=page_tables,
            causal=causal,
        )


@pytest.mark.parametrize("name", ["llama", "mistral_window"])
def test_the_self_check_passes_a_right_backend_and_refuses_a_wrong_one(name: str) -> None:
    target = tiny_target(name)
    target.model.set_attn_implementation(IMPLEMENTATION)  # type: ignore[operator]
    probe = probe_shapes(target, CPU)
    reference = run_alone(target.model, probe=probe, tap_layers=TAPS, vocab_size=VOCAB)

    def check(backend: type[ReferenceAttention]) -> float:
        return check_target(
            reference,
            make_target=lambda pool: TargetModel(
                model=target.model,
                tap_layers=TAPS,
                pool=pool,
                attention=backend(page_size=pool.page_size, device=CPU),
                vocab_size=VOCAB,
            ),
            probe=probe,
            device=CPU,
        ).logits_difference

    assert check(ReferenceAttention) < 1e-5
    with pytest.raises(LoadError, match="differ from its own"):
        check(_WrongAttention)


def test_a_target_with_recurrent_layers_is_refused_with_the_reason() -> None:
    config = CONFIGS["qwen3"]()
    config.layer_types = ["linear_attention"] * LAYERS
    with pytest.raises(LoadError, match=r"linear_attention.*cannot be taken back"):
        refuse_unservable(config)


def test_a_length_beyond_the_model_is_refused_with_both_numbers() -> None:
    with pytest.raises(LoadError, match="found 999; accepted: at most 256"):
        resolve_max_len(CONFIGS["llama"](), 999)
    assert resolve_max_len(CONFIGS["llama"](), None) == 256


def test_rope_that_depends_on_the_longest_sequence_is_refused_past_its_original_length() -> None:
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    short = {**dynamic, "original_max_position_embeddings": 128}
    plain = {"rope_type": "default", "rope_theta": 10000.0}
    config = CONFIGS["llama"]()
    for rope in (short, {"full_attention": short, "sliding_attention": plain}):
        config.rope_parameters = rope
        with pytest.raises(LoadError, match=r"max_model_len: found 256; accepted: at most 128"):
            resolve_max_len(config, None)
        assert resolve_max_len(config, 128) == 128
    config.rope_parameters = dynamic  # its original length is the model's
    assert resolve_max_len(config, None) == 256
