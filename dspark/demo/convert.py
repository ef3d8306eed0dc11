"""Converts the demo target's GGUF file to a Hugging Face folder, as a separate program.

    python dspark/demo/convert.py FILE.gguf FOLDER

Reading GGUF leaves copies in memory, and three libraries print progress bars and warnings. A
separate process frees the memory and hides the output.
"""

import sys
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
)

_GGUF_FIELDS = ("quantization_config", "_name_or_path", "_model_name_or_path")


def main(argv: list[str]) -> None:
    gguf, folder = Path(argv[0]), Path(argv[1])
    source = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    model = _plain_llama(source)
    model.save_pretrained(folder)
    _save_tokenizer(gguf, folder, max_len=model.config.max_position_embeddings)
    _check_saved(source, folder)
    for file in folder.iterdir():
        file.chmod(0o644)  # safetensors writes 0600, and a cache may be shared


def _plain_llama(source: LlamaForCausalLM) -> LlamaForCausalLM:
    """Move the weights into a model without GGUF fields in its config.

    transformers refuses to save the model that it read: the config still calls it quantised, but
    every weight is float32.
    """
    fields = {k: v for k, v in source.config.to_dict().items() if k not in _GGUF_FIELDS}
    config = LlamaConfig(**fields)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.load_state_dict(source.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=[config.eos_token_id],
        pad_token_id=config.pad_token_id,
    )
    return model


def _save_tokenizer(gguf: Path, folder: Path, *, max_len: int) -> None:
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.model_max_length = max_len
    assert tokenizer.chat_template, "the GGUF file carries no chat template"
    tokenizer.save_pretrained(folder)


def _check_saved(source: LlamaForCausalLM, folder: Path) -> None:
    """Check that the folder has the source's weights and gives its logits for a few tokens."""
    saved = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    weights = saved.state_dict()
    for name, weight in source.state_dict().items():
        assert torch.equal(weight, weights[name]), f"{name} differs after saving"
    token_ids = torch.arange(1, 9)[None]
    with torch.inference_mode():
        found, expected = saved(token_ids).logits, source(token_ids).logits
    assert torch.equal(found, expected), f"logits differ by {(found - expected).abs().max()}"


if __name__ == "__main__":
    main(sys.argv[1:])
