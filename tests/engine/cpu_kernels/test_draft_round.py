"""The kernels' draft pass equals PyTorch's, row by row, or is not used for a reason."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from draft import (
    BlockRequest,
    DecoderVariant,
    DSparkConfig,
    DSparkNetwork,
    DSparkProposer,
    LayerConfig,
)
from engine import EngineSamplingParams, Request
from engine.core.offline import drive
from engine.cpu_kernels.compiling import CpuKernelsUnavailable
from engine.cpu_kernels.draft_round import CpuDraftRound
from engine.model_setup.draft_check import difference_of
from tests.support.draft.serving import Served, one_block, prompts_of, sample_rows
from tests.support.draft.tiny import random_network, reference_attention, tiny_config
from tests.support.engine.cpu_kernels import kernels_or_skip
from tests.support.engine.tiny_models import tiny_engine, tiny_target, write_tiny_draft

LENGTHS = (9, 0, 1, 130, 4)
CONFIGS = {
    "plain": tiny_config(head_dim=16),
    "odd sizes": tiny_config(
        hidden_size=33, intermediate_size=37, num_heads=6, head_dim=32, vocab_size=67, markov_rank=5
    ),
    "one slot, one KV head": tiny_config(head_dim=16, num_heads=8, num_kv_heads=1, block_size=1),
    "more queries than an attention task": tiny_config(head_dim=16, num_heads=10, block_size=8),
    "one layer": tiny_config(head_dim=16, layers=(LayerConfig(1e6),)),
    "two ropes": tiny_config(head_dim=16, layers=(LayerConfig(1e4), LayerConfig(1e6))),
    "a draft vocabulary": tiny_config(head_dim=16, draft_vocab_size=23),
    "a large vocabulary": tiny_config(head_dim=16, vocab_size=1003),
    "the anchor predicts nothing": tiny_config(head_dim=16, sample_from_anchor=False),
    "confidence of hidden states": tiny_config(head_dim=16, confidence_with_markov=False),
    "no heads": tiny_config(
        head_dim=16,
        markov_kind=None,
        markov_rank=0,
        has_confidence_head=False,
        confidence_with_markov=False,
    ),
}
BY_TORCH = {  # the kernels run layers and head, PyTorch the chain
    "gated": tiny_config(head_dim=16, markov_kind="gated"),
    "rnn": tiny_config(head_dim=16, markov_kind="rnn", sample_from_anchor=False),
}


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


class Pair:
    """The same sequences, drafted by PyTorch and by the kernels."""

    def __init__(
        self,
        network: DSparkNetwork,
        lengths: Sequence[int] = LENGTHS,
        *,
        num_threads: int = 1,
        max_rows: int = 200,
    ) -> None:
        self.served = Served(network, prompts_of(network, lengths), page_size=4, num_slots=400)
        pool = self.served.pool
        self.kernel = CpuDraftRound(
            kernels=kernels_or_skip(),
            network=network,
            pool=pool,
            max_rows=max_rows,
            num_threads=num_threads,
        )
        self.by_kernels = DSparkProposer(
            network=network,
            pool=pool,
            attention=reference_attention(pool),
            block_kernel=self.kernel,
        )


def network_of(config: DSparkConfig) -> DSparkNetwork:
    with torch.inference_mode(False):
        return random_network(config, max_positions=160)


@pytest.mark.parametrize("name", [*CONFIGS, *BY_TORCH])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_kernel_pass_equals_pytorchs(name: str, num_threads: int) -> None:
    pair = Pair(network_of((CONFIGS | BY_TORCH)[name]), num_threads=num_threads)
    request = pair.served.request()
    expected = pair.served.proposer.run_torch_pass(request)
    found = pair.kernel.run(request)
    assert found is not None
    _assert_close(found.hidden, expected.hidden)
    _assert_close(found.base_logits, expected.base_logits)
    block, ours = pair.served.proposer.propose(request), pair.by_kernels.propose(request)
    assert torch.equal(ours.draft_ids, block.draft_ids)
    assert (found.draft_ids is None) == (name in BY_TORCH)
    if block.confidence_logits is None:
        assert ours.confidence_logits is None
    else:
        assert ours.confidence_logits is not None
        _assert_close(ours.confidence_logits, block.confidence_logits)


@pytest.mark.parametrize("block_size", range(1, 9))
@pytest.mark.parametrize("sample_from_anchor", [True, False])
def test_blocks_of_any_size_are_drafted_alike(block_size: int, sample_from_anchor: bool) -> None:
    config = replace(CONFIGS["plain"], block_size=block_size, sample_from_anchor=sample_from_anchor)
    pair = Pair(network_of(config), lengths=(3, 0, 66))
    request = pair.served.request()
    expected = pair.served.proposer.propose(request)
    found = pair.by_kernels.propose(request)
    assert found.draft_ids.shape == (3, block_size)
    assert torch.equal(found.draft_ids, expected.draft_ids)


def test_a_row_has_the_same_bits_alone_and_in_any_batch() -> None:
    network = network_of(CONFIGS["odd sizes"])
    pair = Pair(network, num_threads=2)
    request = pair.served.request()
    together = pair.kernel.run(request)
    assert together is not None
    hidden, logits = together.hidden.clone(), together.base_logits.clone()
    for b in range(len(LENGTHS)):
        alone = pair.kernel.run(one_block(request, b))
        assert alone is not None
        assert torch.equal(alone.hidden[0], hidden[b])
        assert torch.equal(alone.base_logits[0], logits[b])
        for name in ("draft_ids", "confidence_logits"):
            assert torch.equal(getattr(alone, name)[0], getattr(together, name)[b])


def test_only_the_scratch_slots_are_written() -> None:
    pair = Pair(network_of(CONFIGS["plain"]))
    pool, request = pair.served.pool, pair.served.request()
    before = pool.draft_keys.clone(), pool.draft_values.clone()
    pair.by_kernels.propose(request)
    slots = request.slots.flatten()
    written = pool.draft_keys[:, slots].clone(), pool.draft_values[:, slots].clone()
    for storage, old in zip((pool.draft_keys, pool.draft_values), before, strict=True):
        changed = (storage != old).flatten(2).any(dim=-1).any(dim=0)
        assert set(changed.nonzero()[:, 0].tolist()) == set(slots.tolist())
    pair.served.proposer.propose(request)
    _assert_close(pool.draft_keys[:, slots], written[0])
    _assert_close(pool.draft_values[:, slots], written[1])


def test_slots_after_a_sequence_do_not_matter() -> None:
    pair = Pair(network_of(CONFIGS["plain"]), lengths=(6, 13))
    request = pair.served.request()
    expected = pair.by_kernels.propose(request).draft_ids
    pool, used = pair.served.pool, torch.zeros(pair.served.pool.num_slots, dtype=torch.bool)
    for table, length in zip(pair.served.tables, request.context_lens, strict=True):
        used[torch.from_numpy(table.slots(0, length))] = True
    pool.draft_keys[:, ~used] = torch.nan
    pool.draft_values[:, ~used] = torch.nan
    assert torch.equal(pair.by_kernels.propose(request).draft_ids, expected)


@pytest.mark.parametrize("name", ["plain", "a draft vocabulary", "the anchor predicts nothing"])
def test_sampled_rows_have_pytorchs_distributions(name: str) -> None:
    pair = Pair(network_of(CONFIGS[name]))
    request = pair.served.request(sample_rows([0, 3, 4], pair.served.block_size))
    expected, found = pair.served.proposer.propose(request), pair.by_kernels.propose(request)
    assert torch.equal(found.draft_ids, expected.draft_ids)
    assert found.draft_probs is not None
    assert expected.draft_probs is not None
    _assert_close(found.draft_probs, expected.draft_probs)


@pytest.mark.parametrize("strength", [0.0, 0.1, 1.0, 10.0, 1000.0])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_skipping_stretches_never_changes_a_token(strength: float, num_threads: int) -> None:
    """From biases without effect, so that one stretch is read, to biases that dominate."""
    network = network_of(CONFIGS["a large vocabulary"])
    network.markov_head.markov_w2.weight.data *= strength
    pair = Pair(network, lengths=tuple(range(12)), num_threads=num_threads)
    _assert_agree(pair)


def test_of_equal_logits_the_first_is_taken() -> None:
    network = network_of(
        replace(
            CONFIGS["a large vocabulary"],
            markov_kind=None,
            markov_rank=0,
            confidence_with_markov=False,
        )
    )
    network.lm_head.weight.data[:] = network.lm_head.weight[500]
    pair = Pair(network, num_threads=3)
    assert (pair.by_kernels.propose(pair.served.request()).draft_ids == 0).all()


def test_rows_of_w2_that_grew_in_place_are_measured_again() -> None:
    network = network_of(CONFIGS["a large vocabulary"])
    pair = Pair(network, lengths=tuple(range(12)))
    _assert_agree(pair)
    with torch.inference_mode(False):
        network.markov_head.markov_w2.weight.data *= 30
    _assert_agree(pair)


@pytest.mark.parametrize("at_a_time", [1, 2, 4])
@pytest.mark.parametrize("name", ["plain", "no heads", "gated"])
def test_a_batch_that_is_too_large_is_run_in_parts_with_the_same_result(
    name: str, at_a_time: int
) -> None:
    network = network_of((CONFIGS | BY_TORCH)[name])
    request = Pair(network).served.request()
    whole, parts = (
        Pair(network, max_rows=count * network.config.num_slots).kernel.run(request)
        for count in (len(LENGTHS), at_a_time)
    )
    assert whole is not None
    assert parts is not None
    assert torch.equal(whole.hidden, parts.hidden)
    assert torch.equal(whole.base_logits, parts.base_logits)
    for of_whole, of_parts in (
        (whole.draft_ids, parts.draft_ids),
        (whole.confidence_logits, parts.confidence_logits),
    ):
        assert (of_whole is None) == (of_parts is None)
        assert of_whole is None or of_parts is None or torch.equal(of_whole, of_parts)


def test_more_sequences_than_a_chain_holds_are_run_in_parts() -> None:
    network = network_of(CONFIGS["one slot, one KV head"])
    fits, more = (
        Pair(network, lengths=(0,) * count).kernel.run(_empty(count)) for count in (64, 65)
    )
    assert fits is not None
    assert more is not None
    assert fits.draft_ids is not None
    assert more.draft_ids is not None
    assert len(more.draft_ids) == 65
    assert torch.equal(more.draft_ids[:64], fits.draft_ids)


def test_changed_and_replaced_parameters_are_used() -> None:
    network = network_of(CONFIGS["plain"])
    pair = Pair(network)
    layer = network.layers[1]
    with torch.inference_mode(False):
        layer.mlp.up_proj.weight.data += 0.5  # in place
        _assert_agree(pair)
        layer.mlp.gate_proj.weight.data = layer.mlp.gate_proj.weight.data + 0.5
        _assert_agree(pair)
        network.norm.weight = nn.Parameter(network.norm.weight * 2, requires_grad=False)
        _assert_agree(pair)
        layer.self_attn.o_proj = nn.Linear(64, 32, bias=False).requires_grad_(False)
        _assert_agree(pair)
    assert pair.kernel.reason is None


class _Other(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight) * 0.9


def test_pytorch_runs_passes_while_a_layer_is_unsupported_or_hooked() -> None:
    network = network_of(CONFIGS["plain"])
    pair = Pair(network)
    with torch.inference_mode(False):
        own, other = network.lm_head, _Other(32, 61, bias=False).requires_grad_(False)
        network.lm_head = other
        _assert_agree(pair)
        assert pair.kernel.reason == "lm_head is a _Other, not a linear layer without bias"
        network.lm_head = own
        hook = own.register_forward_hook(lambda module, args, output: output.roll(1, -1))
        _assert_agree(pair)
        assert pair.kernel.reason == "it has hooks, which the kernels do not call"
        hook.remove()
        _assert_agree(pair)
    assert pair.kernel.reason is None


@pytest.mark.parametrize("change", ["anchor", "slot", "page", "position"])
def test_an_id_slot_page_or_position_out_of_range_is_an_index_error(change: str) -> None:
    pair = Pair(network_of(CONFIGS["plain"]), lengths=(5, 9))
    request = pair.served.request()
    tables = [list(table) for table in request.page_tables]
    if change == "anchor":
        request.anchor_ids[1] = 61
    elif change == "slot":
        request.slots[0, 2] = pair.served.pool.num_slots
    elif change == "page":
        tables[1][0] = -1
    else:
        tables[1] = list(range(90))
        request = replace(request, context_lens=[5, 161])
    with pytest.raises(IndexError, match="is out of range"):
        pair.kernel.run(replace(request, page_tables=tables))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (tiny_config(head_dim=16, layers=(LayerConfig(1e4, 5),)), "sliding or causal"),
        (tiny_config(head_dim=16, attention_bias=True), "attention has biases"),
        (tiny_config(head_dim=6), "no code for a head_dim of 6"),
        (
            tiny_config(head_dim=16, variant=DecoderVariant(logit_cap=30.0)),
            r"its decoder differs from Qwen3's: logit_cap 30\.0$",
        ),
    ],
)
def test_an_unsupported_draft_is_declined_with_the_reason(
    config: DSparkConfig, reason: str
) -> None:
    with pytest.raises(CpuKernelsUnavailable, match=reason):
        Pair(network_of(config))


def test_served_tokens_and_rounds_equal_those_of_pytorchs_drafts() -> None:
    kernels_or_skip()
    requests = [
        Request(f"{b}", tuple(range(3 + b, 9 + 5 * b)), EngineSamplingParams(max_new_tokens=24))
        for b in range(4)
    ]
    target, served = tiny_target(has_eos=False), []
    with TemporaryDirectory() as folder:
        draft = write_tiny_draft(Path(folder), head_dim=16)
        for native_kernels in ("auto", "off"):
            built = tiny_engine(target=target, draft_folder=draft, native_kernels=native_kernels)
            runs = drive(built.engine, requests, concurrency=3)
            served.append([(run.token_ids, run.event_sizes) for run in runs])
    assert served[0] == served[1]


def test_an_engine_reports_how_drafts_are_computed() -> None:
    kernels_or_skip()
    assert _passes(head_dim=16) == ("native", None, "native", None)
    assert _passes() == ("torch", "there is no code for a head_dim of 12", "torch", None)
    assert _passes(native_kernels="off") == ("torch", "switched off", "torch", None)


@pytest.mark.parametrize("wrong", ["logits", "tokens"])
def test_a_pass_that_disagrees_is_not_used(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    kernels_or_skip()
    run = CpuDraftRound.run

    def other(self: CpuDraftRound, request: BlockRequest) -> object:
        found = run(self, request)
        assert found is not None
        assert found.draft_ids is not None
        if wrong == "logits":
            return replace(found, base_logits=found.base_logits + 1e-2)
        return replace(found, draft_ids=found.draft_ids + 1)

    monkeypatch.setattr(CpuDraftRound, "run", other)
    assert _passes(head_dim=16)[:2] == ("torch", "it does not agree with PyTorch")


def test_the_check_moves_no_parameter() -> None:
    network = network_of(CONFIGS["plain"])
    before = [p.data_ptr() for p in network.parameters()]

    def kernel_over(pool: object) -> CpuDraftRound:
        return CpuDraftRound(
            kernels=kernels_or_skip(),
            network=network,
            pool=pool,  # type: ignore[arg-type]
            max_rows=100,
            num_threads=1,
        )

    assert difference_of(network, kernel_over) < 1e-5
    assert [p.data_ptr() for p in network.parameters()] == before


def _empty(num_sequences: int) -> BlockRequest:
    """Blocks of one slot without any context, a page each."""
    pages = torch.arange(num_sequences)
    return BlockRequest(
        anchor_ids=pages % 61,
        anchor_positions=pages * 0,
        slots=pages[:, None] * 4,
        page_tables=[[page] for page in pages.tolist()],
        context_lens=[0] * num_sequences,
    )


def _passes(*, native_kernels: str = "auto", **changes: object) -> tuple[object, ...]:
    with TemporaryDirectory() as folder:
        built = tiny_engine(
            target=tiny_target(),
            draft_folder=write_tiny_draft(Path(folder), **changes),
            native_kernels=native_kernels,
        )
    draft = built.engine.info.details["draft"]
    assert isinstance(draft, dict)
    return tuple(draft["passes"].values())


def _assert_agree(pair: Pair) -> None:
    with torch.inference_mode():
        request = pair.served.request()
        expected, found = pair.served.proposer.propose(request), pair.by_kernels.propose(request)
    assert torch.equal(found.draft_ids, expected.draft_ids)
    assert found.confidence_logits is not None
    assert expected.confidence_logits is not None
    _assert_close(found.confidence_logits, expected.confidence_logits)


def _assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Within 1e-5 of the largest."""
    scale = float(expected.abs().max())
    torch.testing.assert_close(found / scale, expected / scale, atol=1e-5, rtol=1e-5)
