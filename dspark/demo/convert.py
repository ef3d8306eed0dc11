"""Turns the demo target's GGUF file into a Hugging Face folder. Runs as a program of its own.

    python dspark/demo/convert.py FILE.gguf FOLDER

A process apart, because reading GGUF fills memory with copies and the terminal with the progress
bars and warnings of three libraries; both end with the process.
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

_NOT_OURS = ("quantization_config", "_name_or_path", "_model_name_or_path")


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
    """The same weights in a model that knows nothing of GGUF.

    transformers refuses to save the one that it read: its config says quantised, though every
    weight has long been float32.
    """
    fields = {k: v for k, v in source.config.to_dict().items() if k not in _NOT_OURS}
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
    """The folder holds the source's very weights and says the same about a few tokens."""
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
