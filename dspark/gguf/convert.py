"""Converts a GGUF file to a Hugging Face folder in float32, as a separate program.

    python dspark/gguf/convert.py FILE.gguf FOLDER

Reading GGUF leaves copies in memory, and three libraries print progress bars and warnings. A
separate process frees the memory and hides the output. Its last line is the reason of a failure.
"""

import math
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

_GGUF_FIELDS = ("quantization_config", "_name_or_path", "_model_name_or_path")
_END_TOKENS = ("eos", "eot", "eom")  # of a text, a turn, a message
_ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_SAME_NAMES = ("attn_logit_softcapping", "final_logit_softcapping", "logit_scale")
_MARGIN_BYTES = 64 << 20


def main(argv: list[str]) -> None:
    gguf, folder = Path(argv[0]), Path(argv[1])
    try:
        source = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32
        )
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    except Exception as error:  # transformers raises anything for files that it cannot read
        raise SystemExit(_one_line(f"transformers cannot read it: {error}")) from error
    fields = _metadata(gguf)
    refuse_unread(fields, source.config)
    model = _plain_model(source)
    model.generation_config = generation_config(fields, model.config)
    require_space(model, folder)
    model.save_pretrained(folder)
    tokenizer.model_max_length = getattr(model.config, "max_position_embeddings", None)
    tokenizer.save_pretrained(folder)
    _check_saved(source, folder)
    for file in folder.iterdir():
        file.chmod(0o644)  # safetensors writes 0600, and a cache may be shared


def _plain_model(source: Any) -> Any:
    """Move the weights into a model without GGUF fields in its config.

    transformers refuses to save the model that it read: the config still calls it quantised, but
    every weight is float32.
    """
    fields = {k: v for k, v in source.config.to_dict().items() if k not in _GGUF_FIELDS}
    config = type(source.config)(**fields)
    with torch.device("meta"):
        model = type(source)(config)
    model.load_state_dict(source.state_dict(), assign=True)
    model.tie_weights()
    return model


def _metadata(gguf: Path) -> dict[str, Any]:
    """Read the fields without the vocabulary, by their names; tensors of RoPE count as fields."""
    reader = GGUFReader(gguf)
    fields = {n: f.contents() for n, f in reader.fields.items() if len(f.data) == 1}
    return fields | {t.name: "a tensor" for t in reader.tensors if t.name in _ROPE_TENSORS}


def refuse_unread(fields: Mapping[str, Any], config: Any) -> None:
    """Exit with the name of a field that changes the model and that transformers did not read.

    fields: of the file, by name. config: what transformers made of them.
    """
    text_config = config.get_text_config()
    rope = list(_numbers(getattr(text_config, "rope_parameters", None) or {}))
    kept: dict[str, Sequence[Any]] = {"rope.freq_base": rope, "rope.scaling.factor": [1.0, *rope]}
    for name in _SAME_NAMES:
        kept[name] = [getattr(text_config, name, None)]
    kept["attention.sliding_window"] = [getattr(text_config, "sliding_window", None)]
    kept |= {name: [] for name in _ROPE_TENSORS}
    for name, value in fields.items():
        own = name if name in kept else name.partition(".")[2]
        if own in kept and value and not any(_is_close(value, other) for other in kept[own]):
            raise SystemExit(
                f"transformers does not read its field {name}, {value}, so that it would be "
                "another model; accepted: a folder with safetensors of this model"
            )


def _numbers(rope: Mapping[str, Any]) -> Iterator[float]:
    """Yield the numbers of RoPE parameters, which may be nested by kinds of layers."""
    for value in rope.values():
        if isinstance(value, Mapping):
            yield from _numbers(value)
        elif isinstance(value, int | float):
            yield float(value)


def _is_close(value: Any, other: Any) -> bool:
    numbers = isinstance(value, int | float) and isinstance(other, int | float)
    return math.isclose(value, other, rel_tol=1e-4) if numbers else bool(value == other)


def generation_config(fields: Mapping[str, Any], config: Any) -> GenerationConfig:
    """Make the settings that end generation at every end token of the file, or else of the config.

    fields: of the file, by name. config: what transformers made of them.
    """
    names = [f"tokenizer.ggml.{name}_token_id" for name in _END_TOKENS]
    ends = [int(fields[name]) for name in names if name in fields]
    of_config = config.eos_token_id
    if not ends and of_config is not None:
        ends = of_config if isinstance(of_config, list) else [of_config]
    return GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=list(dict.fromkeys(ends)) or None,
        pad_token_id=config.pad_token_id,
    )


def require_space(model: nn.Module, folder: Path) -> None:
    needed = sum(p.numel() * p.element_size() for p in model.parameters()) + _MARGIN_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise SystemExit(
            f"found {free >> 20} MiB free in {folder}, the float32 weights need {needed >> 20} "
            "MiB; set DSPARK_CACHE to a folder with more space"
        )


def _check_saved(source: nn.Module, folder: Path) -> None:
    """Check that the folder has the source's weights and gives its logits for a few tokens."""
    saved = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    weights = saved.state_dict()
    for name, weight in source.state_dict().items():
        assert torch.equal(weight, weights[name]), f"{name} differs after saving"
    token_ids = torch.arange(1, 9)[None]
    with torch.inference_mode():
        found, expected = saved(token_ids).logits, source(token_ids).logits
    assert torch.equal(found, expected), f"logits differ by {(found - expected).abs().max()}"


def _one_line(text: str) -> str:
    return " ".join(text.split())[:500]


if __name__ == "__main__":
    main(sys.argv[1:])
