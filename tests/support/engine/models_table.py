"""docs/models.md, made from the families that the tests serve or see refused: `make docs`.

python -m tests.support.engine.models_table      writes it
"""

from collections import Counter

from dspark.training.config import DesignConfig
from dspark.training.data.hidden_states import HiddenStateReader
from dspark.training.model.design import decoder_variant, design_draft
from engine.cpu_kernels.target_layers import why_unsupported
from engine.errors import LoadError
from engine.loading.target import by_transformers_alone, fastest_attention
from tests.support.engine.decoder_classes import CLASSES, Outcome, recorded, recorded_version
from tests.support.engine.families import FAMILIES, Family
from tests.support.engine.tiny_models import CPU
from tests.support.paths import ROOT

FILE = ROOT / "docs" / "models.md"

_PREFACE = """# Model families

Generated from the cases of `tests/engine/model_setup/test_families.py` by `make docs`; do not edit.

**Exact**: a tiny model of the family gives the greedy tokens of transformers, past its window if it
has one. **CPU kernels**, **int8**: whole passes run in native code, and `model.quantization: int8`
works; other families run through transformers' layers. **Training**: `dspark train` accepts it.
Every other decoder is compared with its own attention when it is loaded, and is refused if it
differs; [below](#every-decoder-class) is what that gives for each class of transformers.

| Family | `model_type` | Exact | CPU kernels | int8 | Training |
|---|---|---|---|---|---|
"""

_REFUSED = """
Refused, with the reason that the server reports:

| Family | `model_type` | Reason |
|---|---|---|
"""

_CLASSES = """
## Every decoder class

Each class that `AutoModelForCausalLM` of transformers {version} knows was tried: its default
config with small sizes and all its kinds of layers, and again with windows and caps switched on.
`make verify` tries them again. **exact**: tokens and logits of transformers beyond every window;
**exact, by mask**: its layers apply the window by a mask alone, which is built here too;
**refused**: with this reason, when it is loaded; **not tried**: no small model can be made of it,
so only the check at load decides. {counts}

| `model_type` | Class | Config | Outcome |
|---|---|---|---|
"""

_KINDS = {
    "exact": "exact",
    "mask": "exact, by mask",
    "refused": "refused",
    "untried": "not tried",
}

_GGUF = """
## GGUF files

`dspark serve file.gguf` converts the file once into a folder of the cache, in float32: weights,
tokenizer, chat template and end tokens. transformers reads the file, so its architecture and types
of tensors must be ones that transformers knows. A field that changes the model and is not read, as
scaled RoPE, is refused. A file that changes is converted again. It needs the extra `gguf`.
"""


def table() -> str:
    """Return the page as a whole."""
    served = [(name, f) for name, f in FAMILIES.items() if f.refusal is None]
    refused = [(name, f) for name, f in FAMILIES.items() if f.refusal is not None]
    rows = [_row(name, family) for name, family in served]
    reasons = [f"| {name} | `{f.model_type}` | {f.refusal} |" for name, f in refused]
    return (
        _PREFACE
        + "\n".join(rows)
        + "\n"
        + _REFUSED
        + "\n".join(reasons)
        + "\n"
        + _classes()
        + _GGUF
    )


def _classes() -> str:
    """Return the section on every class, from the record."""
    record = recorded()
    kinds = Counter(outcomes[0].kind for outcomes in record.values())
    counts = ", ".join(f"{kinds[kind]} {text}" for kind, text in _KINDS.items() if kinds[kind])
    head = _CLASSES.format(
        version=recorded_version(), counts=f"By their default config, of {len(record)}: {counts}."
    )
    rows = [
        f"| `{name}` | {CLASSES.get(name, '-')} | {outcome.config} | {_text(outcome)} |"
        for name, outcomes in record.items()
        for outcome in outcomes
    ]
    return head + "\n".join(rows) + "\n"


def _text(outcome: Outcome) -> str:
    reason = outcome.reason.removeprefix("this target, ").removeprefix("this target ")
    return _KINDS[outcome.kind] + (f": {reason.replace('|', '/')}" if reason else "")


def _row(name: str, family: Family) -> str:
    kernels = _tick(why_unsupported(family.model()) is None)
    training = _tick(_is_trainable(family))
    return f"| {name} | `{family.model_type}` | yes | {kernels} | {kernels} | {training} |"


def _tick(is_so: bool) -> str:
    return "yes" if is_so else "-"


def _is_trainable(family: Family) -> bool:
    target = family.target()
    cap = decoder_variant(target).logit_cap
    try:
        design_draft(DesignConfig(num_taps=1), target, mask_token_id=0)
        with by_transformers_alone(target.model, fastest_attention(target.model)):
            reader = HiddenStateReader(target=target, tap_layers=(1,), device=CPU, logit_cap=cap)
            reader.refuse_other_heads()
    except LoadError:
        return False
    return True


if __name__ == "__main__":
    FILE.write_text(table(), encoding="utf-8")
