"""A row has the same bits alone and in any batch, with any number of threads."""

import copy

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Phi3Config,
    Qwen3Config,
    SmolLM3Config,
)

from engine.cpu_kernels.decoder import CpuDecoder
from engine.cpu_kernels.linear import cpu_linear
from engine.loading.target import LoadedTarget, dense_reference, describe_target
from engine.runner.batch import batch_of_rows
from kv_pool import KVLayout, KVPool, KVShape
from tests.support.engine.cpu_kernels import kernels_or_skip
from tests.support.engine.tiny_models import CPU

VOCAB = 83  # odd sizes throughout: no width below is a multiple of a vector
LENGTH = 150  # tokens: three blocks of keys
TAPS = (-1, 1)

_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 54,
    "intermediate_size": 71,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}
CONFIGS = {
    "biases": LlamaConfig(**_SIZES, attention_bias=True),
    "no_groups": LlamaConfig(**{**_SIZES, "num_key_value_heads": 6}),
    "one_group": LlamaConfig(**{**_SIZES, "num_key_value_heads": 1}),
    "wide_heads": LlamaConfig(**{**_SIZES, "head_dim": 80}),
    "window": MistralConfig(**_SIZES, sliding_window=37),
    "head_norms": Qwen3Config(**_SIZES),
    "norms_around_and_two_rotations": Gemma3TextConfig(
        **_SIZES,
        sliding_window=37,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "norms_after": Olmo2Config(**_SIZES),
    "multipliers": GraniteConfig(
        **_SIZES,
        attention_bias=True,
        attention_multiplier=0.2,
        embedding_multiplier=3.0,
        residual_multiplier=0.4,
        logits_scaling=2.0,
    ),
    "merged_matrices_and_partly_rotated_heads": Phi3Config(
        **_SIZES,
        sliding_window=37,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
        },
        pad_token_id=0,
    ),
    "a_layer_without_rotation": SmolLM3Config(**_SIZES, no_rope_layers=[1, 0, 1], pad_token_id=0),
}


def _target(name: str, dtype: torch.dtype = torch.float32) -> LoadedTarget:
    torch.manual_seed(1)
    config = copy.deepcopy(CONFIGS[name])
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    for parameter in model.parameters():  # norms and biases too
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.eval().requires_grad_(False).to(dtype)
    return describe_target(model, max_len=LENGTH + 10, dtype=dtype)


class _Runner:
    """A kernel decoder over a pool, driven piece by piece."""

    def __init__(
        self,
        target: LoadedTarget,
        *,
        num_threads: int = 1,
        page_size: int = 4,
        num_texts: int = 4,
    ) -> None:
        config = target.model.config
        heads, dim = config.num_key_value_heads, config.head_dim  # type: ignore[union-attr]
        layers = (KVShape(heads, dim, dim, target.dtype),) * target.num_layers  # type: ignore[arg-type]
        self._page_size = page_size
        pages = num_texts * -(-LENGTH // page_size)
        self._tables = torch.randperm(pages).view(num_texts, -1).tolist()
        self._texts = torch.arange(num_texts * LENGTH).view(num_texts, LENGTH) * 7919 % VOCAB
        self._decoder = CpuDecoder(
            kernels=kernels_or_skip(),
            model=target.model,
            pool=KVPool(KVLayout(page_size, CPU, target=layers), num_pages=pages),
            tap_layers=TAPS,
            max_len=target.max_len,
            max_rows=num_texts * LENGTH,
            num_threads=num_threads,
        )

    def text(self, b: int) -> Tensor:
        return self._texts[b]

    @torch.inference_mode()
    def run(self, *pieces: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
        """Logits and taps of rows start..stop-1 of each (sequence, start, stop)."""
        logits, taps = self._decoder.run(
            batch_of_rows(
                [(self._texts[b], self._tables[b], i, j) for b, i, j in pieces],
                page_size=self._page_size,
            )
        )
        return logits.clone(), taps.clone()


@pytest.mark.parametrize("name", CONFIGS)
def test_one_token_at_a_time_is_the_whole_text_at_once(name: str) -> None:
    target = _target(name)
    whole, alone = _Runner(target), _Runner(target)
    logits, taps = whole.run((0, 0, LENGTH))
    with torch.inference_mode():
        dense, dense_taps = dense_reference(target.model, TAPS, whole.text(0)[None])
    torch.testing.assert_close(logits, dense, atol=2e-3, rtol=1e-4)
    torch.testing.assert_close(taps, dense_taps, atol=2e-3, rtol=1e-4)
    for at in range(LENGTH):
        one_logits, one_taps = alone.run((0, at, at + 1))
        assert torch.equal(one_logits[0], logits[at]), at
        assert torch.equal(one_taps[0], taps[at]), at


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_chunks_neighbours_pages_and_threads_change_no_bit(
    num_threads: int, page_size: int
) -> None:
    target = _target("biases")
    expected = _Runner(target).run((0, 0, LENGTH))
    runner = _Runner(target, num_threads=num_threads, page_size=page_size)
    found, at = [], 0
    for rows in (70, 1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 17, 5):
        neighbours = [(b, at // 2, at // 2 + b) for b in (1, 2, 3)] if rows % 2 else []
        logits, taps = runner.run((0, at, at + rows), *neighbours)
        found.append((logits[:rows], taps[:rows]))
        at += rows
    assert at == LENGTH
    assert torch.equal(torch.cat([logits for logits, _ in found]), expected[0])
    assert torch.equal(torch.cat([taps for _, taps in found]), expected[1])


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("name", ["biases", "no_groups", "window"])
def test_sixteen_sequences_of_any_lengths_have_the_same_bits_as_each_alone(
    name: str, num_threads: int
) -> None:
    target = _target(name)
    together = _Runner(target, num_threads=num_threads, num_texts=16)
    alone = _Runner(target, num_texts=16)
    lengths = [1 + 29 * b % (LENGTH - 3) for b in range(16)]
    for runner in (together, alone):
        runner.run(*[(b, 0, length) for b, length in enumerate(lengths)])
    for rows in (1, 3):
        pieces = [(b, length, length + rows) for b, length in enumerate(lengths)]
        logits, taps = together.run(*pieces)
        expected = [alone.run(piece) for piece in pieces]
        assert torch.equal(logits, torch.cat([logits for logits, _ in expected]))
        assert torch.equal(taps, torch.cat([taps for _, taps in expected]))


@pytest.mark.parametrize("name", sorted(CONFIGS.keys() - {"no_groups", "one_group", "wide_heads"}))
def test_bfloat16_weights_give_less_error_than_pytorch_and_the_same_bits(name: str) -> None:
    """Only stored keys and values, and at most the rows of products, are rounded to bfloat16."""
    target = _target(name, torch.bfloat16)
    runner, alone = _Runner(target), _Runner(target, num_threads=2)
    logits, taps = runner.run((0, 0, LENGTH))
    assert (logits.dtype, taps.dtype) == (torch.float32, torch.bfloat16)
    exact = copy.deepcopy(target.model).float()
    ids = runner.text(0)[None]
    with torch.inference_mode():
        expected, expected_taps = dense_reference(exact, TAPS, ids)
        by_pytorch, taps_by_pytorch = dense_reference(target.model, TAPS, ids)
    for ours, theirs, truth in (
        (logits, by_pytorch, expected),
        (taps, taps_by_pytorch, expected_taps),
    ):
        assert (ours - truth).abs().mean() < (theirs - truth).abs().mean()
    for start, stop in ((0, 90), (90, 91), (91, 97), (97, LENGTH)):
        some, _ = alone.run((0, start, stop))
        assert torch.equal(some, logits[start:stop])


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("depth", "columns"), [(50, 37), (64, 128), (7, 3), (1540, 47)])
def test_a_row_of_a_product_is_the_same_among_any_others(
    depth: int, columns: int, has_bias: bool
) -> None:
    x, weight = torch.randn(120, depth), torch.randn(columns, depth)
    bias = torch.randn(columns) if has_bias else None
    kernels = kernels_or_skip()
    expected = cpu_linear(kernels, max_rows=120, num_threads=1)(x, weight, bias)
    for rows in (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 25, 96, 97):
        linear = cpu_linear(kernels, max_rows=120, num_threads=1 + rows % 3)
        assert torch.equal(linear(x[:rows], weight, bias), expected[:rows])
