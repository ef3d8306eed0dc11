"""Writes tiny random GGUF files of Qwen 3, whose tensors have one type each or several."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, RopeScalingType, TokenType, quants

TEMPLATE = "{% for m in messages %}<|s|>{{ m.content }}{% endfor %}"
END_OF_TEXT, END_OF_TURN = 256, 257
HIDDEN = 256  # a row of k-quants has a multiple of this
LAYERS = 5
_HEADS, _KV_HEADS, _HEAD_DIM = 4, 2, 128  # 128: what transformers takes for Qwen 3
_KINDS = GGMLQuantizationType
F32 = _KINDS.F32


def write_gguf(
    file: Path,
    kinds: Mapping[str, GGMLQuantizationType] | None = None,
    *,
    architecture: str = "qwen3",
    rope_scaling: float | None = None,
) -> dict[str, np.ndarray]:
    """Write the file and return its tensors, dequantised, by GGUF name.

    kinds: types by the end of a matrix's name, as "attn_q"; the others are float32.
    """
    writer = GGUFWriter(file, architecture)
    writer.add_name("tiny")
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_key_length(_HEAD_DIM)
    writer.add_value_length(_HEAD_DIM)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    if rope_scaling is not None:
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope_scaling)
    _add_tokenizer(writer)
    random = np.random.default_rng(0)
    kept = {}
    for name, shape in _shapes().items():
        end = name.removesuffix(".weight").rpartition(".")[2]
        kind = (kinds or {}).get(end, F32) if len(shape) == 2 else F32
        data, kept[name] = _tensor(random, shape, kind)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return kept


def _add_tokenizer(writer: GGUFWriter) -> None:
    """Add a byte-level vocabulary with one merge and two end tokens."""
    tokens = [*_byte_letters(), "<|end|>", "<|turn|>", "th"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.NORMAL] * 256 + [TokenType.CONTROL] * 2 + [TokenType.NORMAL])
    writer.add_token_merges(["t h"])
    writer.add_eos_token_id(END_OF_TEXT)
    writer.add_eot_token_id(END_OF_TURN)
    writer.add_pad_token_id(END_OF_TEXT)
    writer.add_chat_template(TEMPLATE)


def _byte_letters() -> list[str]:
    """Return the letter of each byte in GPT-2's alphabet."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


def _shapes() -> dict[str, tuple[int, ...]]:
    query, key_value = _HEADS * _HEAD_DIM, _KV_HEADS * _HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (259, HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "output.weight": (259, HIDDEN),
    }
    for layer in range(LAYERS):
        at = f"blk.{layer}"
        shapes |= {
            f"{at}.attn_norm.weight": (HIDDEN,),
            f"{at}.ffn_norm.weight": (HIDDEN,),
            f"{at}.attn_q_norm.weight": (_HEAD_DIM,),
            f"{at}.attn_k_norm.weight": (_HEAD_DIM,),
            f"{at}.attn_q.weight": (query, HIDDEN),
            f"{at}.attn_k.weight": (key_value, HIDDEN),
            f"{at}.attn_v.weight": (key_value, HIDDEN),
            f"{at}.attn_output.weight": (HIDDEN, query),
            f"{at}.ffn_gate.weight": (HIDDEN, HIDDEN),
            f"{at}.ffn_up.weight": (HIDDEN, HIDDEN),
            f"{at}.ffn_down.weight": (HIDDEN, HIDDEN),
        }
    return shapes


def _tensor(
    random: np.random.Generator, shape: tuple[int, ...], kind: GGMLQuantizationType
) -> tuple[np.ndarray, np.ndarray]:
    """Return a random tensor as the file stores it, and its values."""
    if kind in (_KINDS.Q4_K, _KINDS.Q5_K, _KINDS.Q6_K):
        packed = _k_quants(random, shape, kind)
    else:
        plain = (0.15 * random.standard_normal(shape)).astype(np.float32)
        packed = quants.quantize(plain + (1 if len(shape) == 1 else 0), kind)
    return packed, quants.dequantize(packed, kind).reshape(shape).astype(np.float32)


def _k_quants(
    random: np.random.Generator, shape: tuple[int, ...], kind: GGMLQuantizationType
) -> np.ndarray:
    """Return random blocks of k-quants, which the gguf package cannot make, with small scales."""
    size = {_KINDS.Q4_K: 144, _KINDS.Q5_K: 176, _KINDS.Q6_K: 210}[kind]
    blocks = random.integers(0, 256, (shape[0], shape[1] // 256, size), dtype=np.uint8)
    scale = np.frombuffer(np.float16(0.0002).tobytes(), np.uint8)
    if kind is _KINDS.Q6_K:
        blocks[..., -2:] = scale
    else:
        blocks[..., 0:2] = scale
        blocks[..., 2:4] = scale
    return blocks.reshape(shape[0], -1)
