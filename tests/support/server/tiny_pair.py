"""Writes a tiny target with a tokenizer, and a matching draft, to disk."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import GenerationConfig, PreTrainedTokenizerFast

from tests.support.engine.tiny_models import VOCAB, tiny_model, write_tiny_draft

_SPECIAL = ("<eos>", "<bos>", "<unk>")
_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}say: "


@dataclass(frozen=True, slots=True)
class TinyPair:
    target: Path
    draft: Path

    @property
    def flags(self) -> list[str]:
        """Flags that load it on one thread with a pool of 512 tokens."""
        flags = ["--model", str(self.target), "--draft-model", str(self.draft)]
        return [*flags, "--kv.num_pages", "64", "--page-size", "8", "--device.num_threads", "1"]

    @classmethod
    def write(cls, folder: Path, **generation: Any) -> "TinyPair":
        """generation goes into the target's generation_config.json."""
        target = folder / "target"
        model: Any = tiny_model("llama")
        # Random weights hardly ever generate this EOS, so outputs have their full length.
        model.generation_config = GenerationConfig(eos_token_id=VOCAB - 1, **generation)
        model.save_pretrained(target)
        character_tokenizer().save_pretrained(target)
        return cls(target, write_tiny_draft(folder / "draft"))


def character_tokenizer() -> PreTrainedTokenizerFast:
    """One token per printable ASCII character; others are unknown."""
    characters = [chr(c) for c in range(32, 127)] + ["\n"]
    vocabulary = {text: i for i, text in enumerate((*_SPECIAL, *characters))}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", bos_token="<bos>", unk_token="<unk>"
    )
    fast.chat_template = _TEMPLATE
    return fast
