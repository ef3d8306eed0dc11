"""A draft's matrices may be int8: kernels and PyTorch compute what the dequantised ones do."""

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from draft import BlockPass, ContextKVWriter, DSparkConfig, DSparkNetwork, DSparkProposer
from draft.network.int8_linear import Int8Linear
from draft.network.matrices import matrices, matrices_dtype, quantise_matrices
from engine.build import Built
from engine.cpu_kernels.draft_context import CpuContextWriter
from engine.cpu_kernels.draft_round import CpuDraftRound
from engine.cpu_kernels.linear import cpu_int8_product, cpu_linear, use_linear_kernels
from engine.errors import LoadError
from engine.loading.target import LoadedTarget, describe_target
from engine.model_setup.draft_check import difference_of
from kv_pool import KVPool
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
    "a draft vocabulary": tiny_config(head_dim=16, draft_vocab_size=23),
    "a large vocabulary": tiny_config(head_dim=16, vocab_size=1003),
    "the anchor predicts nothing": tiny_config(head_dim=16, sample_from_anchor=False),
    "gated": tiny_config(head_dim=16, markov_kind="gated"),
}
LENGTHS = (9, 0, 1, 130)


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def int8_network(config: DSparkConfig, *, by_kernels: bool = True) -> DSparkNetwork:
    with torch.inference_mode(False):
        network = random_network(config, max_positions=160)
    quantise_matrices(network, target_head=nn.Identity())
    if by_kernels:
        kernels = kernels_or_skip()
        linear = cpu_linear(kernels, max_rows=64, num_threads=1)
        use_linear_kernels(network, linear, cpu_int8_product(kernels, num_threads=1))
    return network


def dequantised(network: DSparkNetwork) -> DSparkNetwork:
    """Build the same network with float32 matrices, computed by PyTorch."""
    with torch.inference_mode(False):
        twin = copy.deepcopy(network)
        for parent in list(twin.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, Int8Linear):
                    setattr(parent, name, _float_layer(child))
    return twin


def _float_layer(layer: Int8Linear) -> nn.Linear:
    made = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
    made.weight = nn.Parameter(layer.weight.float() * layer.scale[:, None], requires_grad=False)
    if layer.bias is not None:
        made.bias = nn.Parameter(layer.bias.clone(), requires_grad=False)
    return made


class Pair:
    """The same sequences, drafted by kernels over int8 and by PyTorch over float32."""

    def __init__(self, config: DSparkConfig, lengths: tuple[int, ...] = LENGTHS) -> None:
        self.network = int8_network(config)
        wide = dequantised(self.network)
        self.served = Served(wide, prompts_of(wide, lengths), page_size=4, num_slots=400)
        self.kernel = CpuDraftRound(
            kernels=kernels_or_skip(),
            network=self.network,
            pool=self.served.pool,
            max_rows=200,
            num_threads=1,
        )
        self.by_kernels = DSparkProposer(
            network=self.network,
            pool=self.served.pool,
            attention=reference_attention(self.served.pool),
            block_kernel=self.kernel,
        )

    def run(self) -> BlockPass:
        found = self.kernel.run(self.served.request())
        assert found is not None
        return found


def _assert_agree(pair: Pair) -> None:
    request, found = pair.served.request(), pair.run()
    expected = pair.served.proposer.run_torch_pass(request)
    torch.testing.assert_close(found.hidden, expected.hidden, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.base_logits, expected.base_logits, atol=1e-4, rtol=1e-4)
    wanted, block = (
        pair.served.proposer.sample_tokens(request, found),
        pair.by_kernels.propose(request),
    )
    assert torch.equal(block.draft_ids, wanted.draft_ids)
    assert block.confidence_logits is not None
    assert wanted.confidence_logits is not None
    torch.testing.assert_close(
        block.confidence_logits, wanted.confidence_logits, atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_a_kernel_pass_over_int8_matrices_equals_that_over_dequantised_ones(name: str) -> None:
    _assert_agree(Pair(CONFIGS[name]))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_row_over_int8_matrices_has_the_same_bits_alone_and_in_any_batch(name: str) -> None:
    pair = Pair(CONFIGS[name])
    together = pair.run()
    hidden, logits = together.hidden.clone(), together.base_logits.clone()
    for row in range(len(LENGTHS)):
        alone = pair.kernel.run(one_block(pair.served.request(), row))
        assert alone is not None
        assert torch.equal(alone.hidden[0], hidden[row])
        assert torch.equal(alone.base_logits[0], logits[row])


def test_scales_of_w2_that_grew_in_place_are_measured_again() -> None:
    pair = Pair(CONFIGS["a large vocabulary"], tuple(range(12)))
    with torch.inference_mode(False):
        wide = pair.served.proposer._network.markov_head
        narrow = pair.network.markov_head
        assert wide is not None
        assert narrow is not None
        narrow.get_parameter("markov_w2.scale").data *= 30
        wide.get_parameter("markov_w2.weight").data *= 30
    _assert_agree(pair)


def test_pytorch_computes_the_same_without_kernels() -> None:
    network = int8_network(CONFIGS["plain"], by_kernels=False)
    wide = dequantised(network)
    passes = []
    for each in (network, wide):
        served = Served(each, prompts_of(each, LENGTHS), page_size=4, num_slots=400)
        passes.append(served.proposer.run_torch_pass(served.request()))
    torch.testing.assert_close(passes[0].base_logits, passes[1].base_logits, atol=1e-4, rtol=1e-4)


def test_the_check_at_load_compares_with_int8_products() -> None:
    network = int8_network(CONFIGS["plain"])

    def kernel_over(pool: KVPool) -> CpuDraftRound:
        return CpuDraftRound(
            kernels=kernels_or_skip(), network=network, pool=pool, max_rows=100, num_threads=1
        )

    assert difference_of(network, kernel_over) < 1e-5


def _write(
    network: DSparkNetwork, rows: tuple[Tensor, Tensor, Tensor], mode: str, *, by_kernels: bool
) -> KVPool:
    pool, kernels = new_pool(network.config), kernels_or_skip()
    linear = cpu_linear(kernels, max_rows=64, num_threads=1)
    kernel = CpuContextWriter(kernels=kernels, linear=linear, max_rows=8, num_threads=1)
    writer = ContextKVWriter(
        network=network,
        pool=pool,
        mode=mode,  # type: ignore[arg-type]
        linear=linear,
        kernel=kernel if by_kernels else None,
    )
    writer.write_context_kv(*rows)
    assert writer.path == ("stacked" if mode == "on" else "per_layer")
    return pool


@pytest.mark.parametrize("count", [1, 5, 40])  # more than 8 are multiplied outside of the kernel
@pytest.mark.parametrize("has_bias", [False, True])
def test_int8_context_is_the_same_stacked_and_per_layer_and_that_of_dequantised_matrices(
    count: int, has_bias: bool
) -> None:
    network = int8_network(tiny_config(head_dim=16, attention_bias=has_bias))
    wide = dequantised(network)
    rows = (
        torch.randn(count, network.config.aux_size),
        torch.randperm(64)[:count],
        torch.randperm(256)[:count],
    )
    expected = _write(wide, rows, "off", by_kernels=False)
    layered = _write(network, rows, "off", by_kernels=False)
    for found, by_kernels in ((layered, False), *((None, each) for each in (False, True))):
        pool = found or _write(network, rows, "on", by_kernels=by_kernels)
        torch.testing.assert_close(pool.draft_keys, expected.draft_keys, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(pool.draft_values, expected.draft_values, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(pool.draft_keys, layered.draft_keys, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(pool.draft_values, layered.draft_values, atol=1e-5, rtol=1e-5)


def test_int8_projections_are_views_into_the_stacked_rows_and_their_changes_are_used() -> None:
    network = int8_network(CONFIGS["plain"], by_kernels=False)
    writer = ContextKVWriter(network=network, pool=new_pool(network.config), mode="on")
    keys, values = (p for p in network.attentions[1].kv_projections)
    for name in ("weight", "scale"):
        storages = {p.get_parameter(name).untyped_storage().data_ptr() for p in (keys, values)}
        assert len(storages) == 1
    with torch.inference_mode(False):
        keys.get_parameter("scale").data *= 2
        values.scale = nn.Parameter(values.get_parameter("scale").data * 3, requires_grad=False)
    rows = torch.randn(3, network.config.aux_size), torch.arange(3), torch.arange(3)
    writer.write_context_kv(*rows)
    expected = new_pool(network.config)
    ContextKVWriter(network=network, pool=expected, mode="off").write_context_kv(*rows)
    torch.testing.assert_close(writer._pool.draft_keys, expected.draft_keys)
    torch.testing.assert_close(writer._pool.draft_values, expected.draft_values)
    assert writer.path == "stacked"


def test_a_layer_that_is_not_int8_makes_writes_per_layer() -> None:
    network = int8_network(CONFIGS["plain"], by_kernels=False)
    with torch.inference_mode(False):
        network.attentions[2].v_proj = nn.Linear(32, 32, bias=False).requires_grad_(False)
    writer = ContextKVWriter(network=network, pool=new_pool(network.config), mode="auto")
    assert (writer.path, writer.reason) == (
        "per_layer",
        "dtype or device differs between layers",
    )


def test_every_matrix_becomes_int8_and_nothing_else() -> None:
    network = int8_network(CONFIGS["gated"], by_kernels=False)
    assert not matrices(network)
    narrow = {name for name, p in network.named_parameters() if p.dtype == torch.int8}
    assert {"lm_head.weight", "fc.weight", "markov_head.markov_w2.weight"} < narrow
    assert not any(name.startswith("confidence_head") for name in narrow)
    assert network.dtype == torch.float32
    assert matrices_dtype(network) == torch.int8


def _engine(folder: Path, **settings: object) -> Built:
    return tiny_engine(draft_folder=write_tiny_draft(folder, head_dim=16), **settings)


def _matrices(built: Built) -> object:
    draft = built.engine.info.details["draft"]
    assert isinstance(draft, dict)
    return draft["matrices"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_auto_is_int8_for_an_int8_target_and_both_models_have_one_head(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    kernels_or_skip()
    target = describe_target(tiny_model("llama").to(dtype), max_len=160, dtype=dtype)
    built = _engine(tmp_path, target=target, quantization="int8")
    assert _matrices(built) == "int8"
    draft = built.engine.info.details["draft"]
    assert isinstance(draft, dict)
    assert draft["passes"]["path"] == draft["passes"]["chain"] == "native"
    assert built.proposer.context_kv_path == "stacked"
    assert built.draft is not None
    network = built.draft.network
    assert network.lm_head is built.target.parts.lm_head
    assert network.dtype == built.pool.draft_keys.dtype == torch.float32


def test_auto_is_not_int8_without_kernels_or_for_a_float_target(tmp_path: Path) -> None:
    assert _matrices(_engine(tmp_path / "a", quantization="int8", native_kernels="off")) != "int8"
    assert _matrices(_engine(tmp_path / "b")) != "int8"


def test_int8_matrices_take_a_quarter_of_the_memory_in_the_plan(tmp_path: Path) -> None:
    # Without kernels nothing moves into large pages, which come in whole ones.
    sizes, layers = {}, []
    for name in ("float32", "int8"):
        built = _engine(tmp_path / name, native_kernels="off", draft_dtype=name)
        sizes[name] = built.memory.draft_bytes
        assert built.draft is not None
        layers = [m for m in built.draft.network.modules() if isinstance(m, Int8Linear)]
    head = layers[0]
    saved = sum(3 * m.weight.nbytes - m.scale.nbytes for m in layers if m is not head)
    # The float32 head is the target's; an int8 one of a float32 target is a copy.
    assert sizes["float32"] - sizes["int8"] == saved - head.weight.nbytes - head.scale.nbytes
    both = _engine(tmp_path / "both", native_kernels="off", draft_dtype="int8", quantization="int8")
    assert both.memory.draft_bytes == sizes["int8"] - head.weight.nbytes - head.scale.nbytes


@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("native_kernels", ["auto", "off"])
def test_int8_drafts_change_no_token(
    quantization: str, native_kernels: str, tmp_path: Path
) -> None:
    kernels_or_skip()
    prompt_ids = prompts(3, vocab=VOCAB)
    alone = run_all(tiny_engine(quantization=quantization), greedy_requests(prompt_ids, 20))
    built = _engine(
        tmp_path, draft_dtype="int8", quantization=quantization, native_kernels=native_kernels
    )
    assert _matrices(built) == "int8"
    drafted = run_all(built, greedy_requests(prompt_ids, 20))
    assert [drafted[str(i)][0] for i in range(3)] == [alone[str(i)][0] for i in range(3)]


def test_an_int8_draft_of_a_float16_target_is_refused(tmp_path: Path) -> None:
    target: LoadedTarget = describe_target(
        tiny_model("llama").to(torch.float16), max_len=160, dtype=torch.float16
    )
    with pytest.raises(
        LoadError, match=r"draft_dtype: found int8; accepted .* float16 on cpu: auto"
    ):
        _engine(tmp_path, target=target, draft_dtype="int8")
