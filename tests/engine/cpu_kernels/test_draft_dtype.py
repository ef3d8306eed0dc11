"""A float32 target may have a draft with bfloat16 matrices: half the bytes, the same tokens."""

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from draft import ContextKVWriter, DSparkConfig, DSparkNetwork, DSparkProposer, LayerConfig
from draft.network.matrices import cast_matrices, is_lossless, matrices, matrices_dtype
from engine.build import Built
from engine.cpu_kernels.draft_context import CpuContextWriter
from engine.cpu_kernels.draft_round import CpuDraftRound
from engine.cpu_kernels.linear import cpu_linear, use_linear_kernels
from engine.errors import LoadError
from engine.loading.as_loaded import as_loaded
from engine.loading.target import LoadedTarget, describe_target
from engine.model_setup.draft_check import difference_of
from tests.support.draft.serving import Served, one_block, prompts_of
from tests.support.draft.tiny import new_pool, random_network, reference_attention, tiny_config
from tests.support.engine.cpu_kernels import kernels_or_skip
from tests.support.engine.running import greedy_requests, prompts, run_all
from tests.support.engine.tiny_models import VOCAB, tiny_engine, tiny_model, write_tiny_draft

CONFIGS = {
    "plain": tiny_config(head_dim=16),
    "odd sizes": tiny_config(
        hidden_size=33, intermediate_size=37, num_heads=6, head_dim=32, vocab_size=67, markov_rank=5
    ),
    "two ropes": tiny_config(head_dim=16, layers=(LayerConfig(1e4), LayerConfig(1e6))),
    "a draft vocabulary": tiny_config(head_dim=16, draft_vocab_size=23),
    "a large vocabulary": tiny_config(head_dim=16, vocab_size=1003),
    "gated": tiny_config(head_dim=16, markov_kind="gated"),
}


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def narrow_network(config: DSparkConfig, *, num_threads: int = 1) -> DSparkNetwork:
    with torch.inference_mode(False):
        network = random_network(config, max_positions=160)
    cast_matrices(network, torch.bfloat16)
    use_linear_kernels(network, cpu_linear(kernels_or_skip(), max_rows=64, num_threads=num_threads))
    return network


def widened(network: DSparkNetwork) -> DSparkNetwork:
    """The same numbers in float32 throughout, computed by PyTorch."""
    with torch.inference_mode(False):
        twin = random_network(network.config, max_positions=160)
        twin.load_state_dict(network.state_dict())
    return twin


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_kernel_pass_over_bfloat16_matrices_is_near_that_over_float32_ones(
    name: str, num_threads: int
) -> None:
    network = narrow_network(CONFIGS[name], num_threads=num_threads)
    wide = widened(network)
    served = Served(wide, prompts_of(wide, (9, 0, 1, 130)), page_size=4, num_slots=400)
    kernel = CpuDraftRound(
        kernels=kernels_or_skip(),
        network=network,
        pool=served.pool,
        max_rows=200,
        num_threads=num_threads,
    )
    by_kernels = DSparkProposer(
        network=network,
        pool=served.pool,
        attention=reference_attention(served.pool),
        block_kernel=kernel,
    )
    request = served.request()
    found, expected = kernel.run(request), served.proposer.run_torch_pass(request)
    assert found is not None
    # Rows that meet a matrix may be rounded to bfloat16 first: 8 bits, layer after layer.
    _assert_near(found.hidden, expected.hidden)
    _assert_near(found.base_logits, expected.base_logits)
    expected_block, block = (
        served.proposer.sample_tokens(request, found),
        by_kernels.propose(request),
    )
    assert torch.equal(block.draft_ids, expected_block.draft_ids)
    assert block.confidence_logits is not None
    assert expected_block.confidence_logits is not None
    torch.testing.assert_close(
        block.confidence_logits, expected_block.confidence_logits, atol=1e-4, rtol=1e-4
    )


def _assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert (found - expected).abs().max() < 0.02 * expected.abs().max()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_row_over_bfloat16_matrices_has_the_same_bits_alone_and_in_any_batch(name: str) -> None:
    network = narrow_network(CONFIGS[name])
    wide = widened(network)
    served = Served(wide, prompts_of(wide, (9, 0, 1, 130)), page_size=4, num_slots=400)
    kernel = CpuDraftRound(
        kernels=kernels_or_skip(), network=network, pool=served.pool, max_rows=200, num_threads=1
    )
    request = served.request()
    together = kernel.run(request)
    assert together is not None
    hidden, logits = together.hidden.clone(), together.base_logits.clone()
    for row in range(4):
        alone = kernel.run(one_block(request, row))
        assert alone is not None
        assert torch.equal(alone.hidden[0], hidden[row])
        assert torch.equal(alone.base_logits[0], logits[row])


@pytest.mark.parametrize("count", [1, 5, 40])
@pytest.mark.parametrize("mode", ["on", "off"])
def test_context_of_bfloat16_matrices_is_that_of_float32_ones(count: int, mode: str) -> None:
    network = narrow_network(tiny_config(head_dim=16, attention_bias=True))
    wide = widened(network)
    kernels = kernels_or_skip()
    linear = cpu_linear(kernels, max_rows=64, num_threads=1)
    kernel = CpuContextWriter(kernels=kernels, linear=linear, max_rows=8, num_threads=1)
    rows = torch.randn(count, network.config.aux_size), torch.randperm(64)[:count]
    slots = torch.randperm(256)[:count]
    found, expected = new_pool(network.config), new_pool(network.config)
    ContextKVWriter(
        network=network,
        pool=found,
        mode=mode,  # type: ignore[arg-type]
        linear=linear,
        kernel=kernel,
    ).write_context_kv(*rows, slots)
    ContextKVWriter(network=wide, pool=expected, mode="off").write_context_kv(*rows, slots)
    for ours, theirs in (
        (found.draft_keys, expected.draft_keys),
        (found.draft_values, expected.draft_values),
    ):
        torch.testing.assert_close(ours[:, slots], theirs[:, slots], atol=1e-4, rtol=1e-4)


def test_the_stacked_form_holds_bfloat16_weights_and_a_float32_norm() -> None:
    network = narrow_network(CONFIGS["plain"])
    writer = ContextKVWriter(network=network, pool=new_pool(network.config), mode="on")
    assert writer.path == "stacked"
    assert network.attentions[0].k_proj.weight.dtype == torch.bfloat16
    assert network.attentions[0].k_norm.weight.dtype == torch.float32


def test_the_check_at_load_compares_with_widened_matrices() -> None:
    network = narrow_network(CONFIGS["plain"])

    def kernel_over(pool: object) -> CpuDraftRound:
        return CpuDraftRound(
            kernels=kernels_or_skip(),
            network=network,
            pool=pool,  # type: ignore[arg-type]
            max_rows=100,
            num_threads=1,
        )

    assert difference_of(network, kernel_over) < 0.02
    layer = network.get_submodule("layers.0.self_attn.q_proj")
    x = torch.randn(2, network.config.hidden_size)
    with as_loaded(network):
        expected = layer(x)
    torch.testing.assert_close(layer(x), expected, atol=1e-5, rtol=1e-5)


def test_only_matrices_become_bfloat16() -> None:
    network = narrow_network(CONFIGS["plain"])
    narrow = {f"{name}.weight" for name in matrices(network)}
    assert {"lm_head.weight", "fc.weight", "markov_head.markov_w2.weight"} < narrow
    for name, parameter in network.named_parameters():
        assert (parameter.dtype == torch.bfloat16) == (name in narrow), name
    assert network.dtype == torch.float32


def test_a_matrix_loses_nothing_if_bfloat16_represents_it_and_the_head_does_not_count() -> None:
    with torch.inference_mode(False):
        network = random_network(CONFIGS["plain"])
        assert not is_lossless(network, torch.bfloat16)
        for layer in matrices(network).values():
            layer.weight.data = layer.weight.data.bfloat16().float()
        assert is_lossless(network, torch.bfloat16)
        assert isinstance(network.lm_head, nn.Linear)
        network.lm_head.weight.data += 1e-4
        assert is_lossless(network, torch.bfloat16)
        network.attentions[0].q_proj.weight.data += 1e-4
        assert not is_lossless(network, torch.bfloat16)


def _engine(folder: Path, *, stored: torch.dtype = torch.float32, **settings: object) -> Built:
    draft = write_tiny_draft(folder, head_dim=16)
    file = draft / "model.safetensors"
    save_file({name: t.to(stored) for name, t in load_file(file).items()}, file)
    return tiny_engine(draft_folder=draft, **settings)


def _matrices(built: Built) -> torch.dtype:
    assert built.draft is not None
    draft = built.engine.info.details["draft"]
    assert isinstance(draft, dict)
    dtype = matrices_dtype(built.draft.network)
    assert draft["matrices"] == str(dtype).removeprefix("torch.")
    return dtype


def test_auto_is_the_dtype_of_the_checkpoint(tmp_path: Path) -> None:
    kernels_or_skip()
    stored = _engine(tmp_path / "a", stored=torch.bfloat16)
    assert _matrices(stored) == torch.bfloat16
    draft = stored.engine.info.details["draft"]
    assert isinstance(draft, dict)
    assert draft["passes"]["path"] == draft["passes"]["chain"] == "native"
    assert stored.proposer.context_kv_path == "stacked"
    assert _matrices(_engine(tmp_path / "b", stored=torch.float32)) == torch.float32


def test_auto_is_float32_without_kernels(tmp_path: Path) -> None:
    built = _engine(tmp_path, stored=torch.bfloat16, native_kernels="off")
    assert _matrices(built) == torch.float32


@pytest.mark.parametrize("native_kernels", ["auto", "off"])
def test_bfloat16_drafts_change_no_token(native_kernels: str, tmp_path: Path) -> None:
    prompt_ids = prompts(3, vocab=VOCAB)
    alone = run_all(tiny_engine(), greedy_requests(prompt_ids, 20))
    built = _engine(tmp_path, draft_dtype="bfloat16", native_kernels=native_kernels)
    assert _matrices(built) == torch.bfloat16
    drafted = run_all(built, greedy_requests(prompt_ids, 20))
    assert [drafted[str(i)][0] for i in range(3)] == [alone[str(i)][0] for i in range(3)]


def test_bfloat16_matrices_take_half_the_memory_in_the_plan(tmp_path: Path) -> None:
    # Without kernels nothing moves into large pages, which come in whole ones.
    wide = _engine(tmp_path / "a", draft_dtype="float32", native_kernels="off")
    narrow = _engine(tmp_path / "b", draft_dtype="bfloat16", native_kernels="off")
    assert wide.draft is not None
    head = wide.target.vocab_size * wide.target.hidden_size * 4  # was the target's, is a copy
    expected = head // 2
    for layer in matrices(wide.draft.network).values():
        if layer is not wide.draft.network.lm_head:
            expected -= layer.weight.nbytes // 2
    assert narrow.memory.draft_bytes - wide.memory.draft_bytes == expected


def test_the_draft_of_a_bfloat16_target_runs_in_kernels_and_computes_in_float32(
    tmp_path: Path,
) -> None:
    kernels_or_skip()
    model = tiny_model("llama").to(torch.bfloat16)
    prompt_ids = prompts(3, vocab=VOCAB)

    def target() -> LoadedTarget:
        return describe_target(copy.deepcopy(model), max_len=160, dtype=torch.bfloat16)

    alone = run_all(tiny_engine(target=target()), greedy_requests(prompt_ids, 20))
    built = _engine(tmp_path / "a", target=target())
    by_pytorch = _engine(tmp_path / "b", target=target(), native_kernels="off")
    assert built.draft is not None
    network = built.draft.network
    assert _matrices(built) == torch.bfloat16
    assert network.dtype == built.pool.draft_keys.dtype == torch.float32
    assert by_pytorch.pool.draft_keys.dtype == torch.bfloat16
    # The head and the embedding are the target's tensors, not copies.
    head = built.target.parts.lm_head.get_parameter("weight")
    embedding = built.target.parts.embedding.get_parameter("weight")
    assert network.get_parameter("lm_head.weight").data_ptr() == head.data_ptr()
    assert network.embed_tokens.weight.data_ptr() == embedding.data_ptr()
    draft = built.engine.info.details["draft"]
    assert isinstance(draft, dict)
    assert draft["passes"]["path"] == draft["passes"]["chain"] == "native"
    assert built.proposer.context_kv_path == "stacked"
    drafted = run_all(built, greedy_requests(prompt_ids, 20))
    assert [drafted[str(i)][0] for i in range(3)] == [alone[str(i)][0] for i in range(3)]


def test_a_float32_draft_of_a_bfloat16_target_is_refused(tmp_path: Path) -> None:
    target = describe_target(
        tiny_model("llama").to(torch.bfloat16), max_len=160, dtype=torch.bfloat16
    )
    with pytest.raises(LoadError, match=r"draft_dtype: found float32; .* target in bfloat16"):
        _engine(tmp_path, target=target, draft_dtype="float32")
