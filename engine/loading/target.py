"""Loads a target from a folder or hub id, and refuses one that cannot run over pages."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from engine.errors import LoadError
from engine.loading.as_loaded import as_loaded
from engine.loading.servable import INTERFACE_UNUSED, refuse_unservable, text_config_of
from engine.runner import hf_attention as attention_hook
from engine.runner.taps import Taps
from engine.runner.target_model import DecoderParts

_SIZES = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings"),
)
_LENGTH_DEPENDENT_ROPE = {"longrope", "dynamic", "su"}


@dataclass(frozen=True, slots=True)
class LoadedTarget:
    """Holds a Hugging Face model and the sizes and ids read from it."""

    model: nn.Module
    parts: DecoderParts
    num_layers: int
    hidden_size: int
    vocab_size: int
    max_len: int  # tokens, prompt and output
    eos_ids: frozenset[int]
    dtype: torch.dtype


def load_target(
    path: str,
    *,
    revision: str | None,
    dtype: torch.dtype,
    device: torch.device,
    trust_remote_code: bool,
    max_model_len: int | None,
) -> LoadedTarget:
    """Load a causal language model for the paged pool.

    Raises LoadError when the files are missing or the architecture cannot be served.
    """
    common: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    try:
        config = AutoConfig.from_pretrained(path, **common)
    except Exception as error:  # transformers raises anything for values that it does not expect
        raise LoadError(
            f"model.path: cannot read a model at {path!r}: {_one_line(error)}"
        ) from error
    text_config = text_config_of(config)
    _check_sizes(path, text_config)
    refuse_unservable(text_config)
    max_len = resolve_max_len(text_config, max_model_len)
    attention_hook.register()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            path,
            config=copy.deepcopy(config),
            dtype=dtype,
            attn_implementation="eager",
            device_map={"": device},  # each weight goes to the device as it is read
            **common,
        )
    except Exception as error:  # as above, and of weights that do not fit
        raise LoadError(f"model.path: cannot load {path!r}: {_one_line(error)}") from error
    model.eval().requires_grad_(False)
    return describe_target(
        model, max_len=max_len, dtype=dtype, generation=_generation(path, common)
    )


def describe_target(
    model: nn.Module, *, max_len: int, dtype: torch.dtype, generation: Any = None
) -> LoadedTarget:
    """Describe a model that is in memory. Raises LoadError when it is no decoder."""
    attention_hook.register()
    config = model.config.get_text_config()  # type: ignore[union-attr,operator]
    try:
        parts = DecoderParts.of(model)
        num_layers = len(parts.layers)
        vocab_size = parts.embedding.get_parameter("weight").shape[0]
    except (AttributeError, TypeError) as error:
        reason = f"it is not built like a decoder: {error}"
        if not getattr(model, "_supports_attention_backend", False):
            reason = INTERFACE_UNUSED
        raise LoadError(
            f"this target, a {config.model_type}, cannot be served: {reason}"
        ) from error
    return LoadedTarget(
        model=model,
        parts=parts,
        num_layers=num_layers,
        hidden_size=int(config.hidden_size),
        vocab_size=vocab_size,
        max_len=max_len,
        eos_ids=eos_ids(generation, config, vocab_size=vocab_size),
        dtype=dtype,
    )


@contextmanager
def by_transformers_alone(model: nn.Module, attention: str = "eager") -> Iterator[None]:
    """Run the model as transformers made it, with the named attention, within the block."""
    before = model.config._attn_implementation  # type: ignore[union-attr]
    model.set_attn_implementation(attention)  # type: ignore[operator]
    try:
        with as_loaded(model):
            yield
    finally:
        model.set_attn_implementation(before)  # type: ignore[operator]


def fastest_attention(model: nn.Module) -> str:
    """Return the fastest of transformers' attention implementations that the model supports."""
    return "sdpa" if getattr(model, "_supports_sdpa", False) else "eager"


def dense_reference(
    model: nn.Module, layer_ids: tuple[int, ...], ids: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the model's own logits [T, V] and tapped hidden states [T, A], without a pool."""
    return _run_alone(model, layer_ids, ids)


def dense_hidden_states(model: nn.Module, layer_ids: tuple[int, ...], ids: Tensor) -> Tensor:
    """Compute the tapped hidden states [T, A] of `dense_reference` without logits of all rows."""
    return _run_alone(model, layer_ids, ids, logits_to_keep=1)[1]


def _run_alone(
    model: nn.Module, layer_ids: tuple[int, ...], ids: Tensor, **options: int
) -> tuple[Tensor, Tensor]:
    parts = DecoderParts.of(model)
    last = len(parts.layers) - 1  # its output is listed by transformers only after the final norm
    taps = Taps(embedding=parts.embedding, layers=parts.layers, layer_ids=[last])
    with by_transformers_alone(model), taps:
        output = model(input_ids=ids, use_cache=False, output_hidden_states=True, **options)
        unnormed = taps.take(ids.shape[1])
    tapped = [
        unnormed if layer_id == last else output.hidden_states[layer_id + 1][0]
        for layer_id in layer_ids
    ]
    logits: Tensor = output.logits[0]
    return logits, torch.cat(tapped, -1) if tapped else logits.new_zeros(ids.shape[1], 0)


def eos_ids(generation: Any, config: Any, *, vocab_size: int) -> frozenset[int]:
    """Read the end-of-sequence ids of generation_config, else of the config.

    Ids beyond the vocabulary, which no model generates, are left out. Raises LoadError.
    """
    for source in (generation, config):
        found = getattr(source, "eos_token_id", None)
        if found is None:
            continue
        ids = found if isinstance(found, list) else [found]
        if not all(type(token_id) is int for token_id in ids):
            raise LoadError(
                f"model.path: found eos_token_id {_cut(found)} in the model's files; accepted: a "
                "token id, or a list of them"
            )
        return frozenset(token_id for token_id in ids if 0 <= token_id < vocab_size)
    return frozenset()


def _check_sizes(path: str, config: Any) -> None:
    """Raise LoadError for a size in config.json that no model has."""
    for name in _SIZES:
        found = getattr(config, name, None)
        if isinstance(found, int) and not 1 <= found < 2**31:
            raise LoadError(
                f"model.path: {path}: found {name} {_cut(found)} in config.json; accepted: an "
                "integer, at least 1"
            )


def resolve_max_len(config: Any, wanted: int | None) -> int:
    """Choose the maximum length of a request. Raises LoadError beyond the model's own limit."""
    limit: int | None = getattr(config, "max_position_embeddings", None) or wanted
    if limit is None:
        raise LoadError(
            "model.max_model_len: found none, in the model's config neither; accepted: a number"
        )
    if wanted is not None and wanted > limit:
        raise LoadError(
            f"model.max_model_len: found {wanted}; accepted: at most {limit}, the model's limit"
        )
    max_len = wanted if wanted is not None else limit
    for rope in _ropes(config):
        _refuse_length_dependent_rope(rope, config, max_len, limit)
    return max_len


def _ropes(config: Any) -> list[dict[str, Any]]:
    """List the RoPE parameters: one set for all layers, or one for each kind of layer."""
    found: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    return [each for each in found.values() if isinstance(each, dict)] or [found]


def _refuse_length_dependent_rope(
    rope: dict[str, Any], config: Any, max_len: int, limit: int
) -> None:
    """Raise LoadError where frequencies would depend on the longest sequence of a batch.

    limit: the model's own, which is the original length unless the config names another.
    """
    if rope.get("rope_type") not in _LENGTH_DEPENDENT_ROPE:
        return
    name = "original_max_position_embeddings"
    original = rope.get(name) or getattr(config, name, None) or limit
    if max_len > original:
        raise LoadError(
            f"model.max_model_len: found {max_len}; accepted: at most {original}, because "
            f"{rope['rope_type']!r} RoPE changes the frequencies of a whole batch beyond that"
        )


def _generation(path: str, common: dict[str, Any]) -> Any:
    try:
        return GenerationConfig.from_pretrained(path, **common)
    except OSError:
        return None


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _cut(value: object) -> str:
    return repr(value)[:60]
