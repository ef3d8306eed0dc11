"""Tries every decoder class of transformers as a target, and records what comes of it.

python -m tests.support.engine.decoder_classes [MODEL_TYPE ...]      tries them, writes the record
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal
from unittest.mock import patch

import torch
import transformers
from torch import nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from engine.errors import LoadError
from engine.loading.servable import refuse_unservable, text_config_of
from engine.loading.target import LoadedTarget, describe_target
from engine.model_setup import target_check
from engine.runner.hf_attention import IMPLEMENTATION
from tests.support.engine.running import generate_alone, greedy_requests, run_all
from tests.support.engine.shrunken import WINDOW, shrunken_configs
from tests.support.engine.tiny_models import CPU, tiny_engine
from tests.support.paths import ROOT

FILE = ROOT / "tests" / "support" / "engine" / "decoder_classes.json"
CLASSES: Mapping[str, str] = dict(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
_PROMPT = [5, 7, 11, 2, 9] * 4
_CHECKED = 80  # tokens, well past every small window
_MOST_PARAMETERS = 30_000_000

# exact: tokens and logits of transformers; mask: exact, though layers pass no window to attention;
# refused: with a reason when it is loaded; untried: no small model can be made of the class.
Kind = Literal["exact", "mask", "refused", "untried", "wrong"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one small config of a class gave."""

    config: str
    kind: Kind
    reason: str = ""


def recorded() -> dict[str, list[Outcome]]:
    """Read the record."""
    found = json.loads(FILE.read_text(encoding="utf-8"))
    return {name: [Outcome(**each) for each in outcomes] for name, outcomes in found["of"].items()}


def recorded_version() -> str:
    """Return the version of transformers that the record is of."""
    version: str = json.loads(FILE.read_text(encoding="utf-8"))["transformers"]
    return version


def outcomes_of(model_type: str) -> list[Outcome]:
    """Try the small configs of a class."""
    return list(_try(model_type))


def _try(model_type: str) -> Iterator[Outcome]:
    configs = shrunken_configs(model_type)
    while True:
        try:
            label, config = next(configs)
        except StopIteration:
            return
        except Exception as error:
            yield Outcome("by default", *_of_large(model_type, error))
            return
        yield Outcome(label, *_outcome(config))


def _of_large(model_type: str, error: Exception) -> tuple[Kind, str]:
    """Return what the default config alone decides, where no small one can be made."""
    try:
        refuse_unservable(text_config_of(CONFIG_MAPPING[model_type]()))
    except LoadError as refusal:
        return "refused", _line(refusal)
    except Exception:
        pass
    return "untried", f"no small config: {_line(error)}"


def _outcome(config: Any) -> tuple[Kind, str]:
    try:
        refuse_unservable(text_config_of(config))
    except LoadError as error:
        return "refused", _line(error)
    try:
        model = _model(config)
    except Exception as error:
        return "untried", f"no small model: {_line(error)}"
    try:
        expected = generate_alone(_target(model), _PROMPT, WINDOW)
    except LoadError as error:
        return "refused", _line(error)
    except Exception:
        expected = None  # its generation needs more than token ids
    try:
        found = run_all(tiny_engine(target=_target(model)), greedy_requests([_PROMPT], WINDOW))[
            "0"
        ][0]
    except LoadError as error:
        return "refused", _line(error)
    except Exception as error:
        kind: Kind = "untried" if expected is None else "wrong"
        return kind, f"its small model fails: {_line(error)}"
    if expected is None:
        return "untried", "transformers' own generation fails on token ids alone"
    try:
        with patch.object(target_check, "_NUM_TOKENS", _CHECKED):
            tiny_engine(target=_target(model))
    except LoadError as error:
        return "wrong", _line(error)
    if found != expected:
        return "wrong", f"found {found}, expected {expected}"
    return ("mask" if _masks(model) else "exact"), ""


def _model(config: Any) -> nn.Module:
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    size = sum(parameter.numel() for parameter in empty.parameters())
    if size > _MOST_PARAMETERS:
        raise ValueError(f"{size} parameters")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):  # transformers starts them at zero
            nn.init.normal_(parameter, std=0.3)
    return model.eval().requires_grad_(False)  # type: ignore[no-any-return]


def _target(model: nn.Module) -> LoadedTarget:
    return describe_target(model, max_len=100, dtype=torch.float32)


def _masks(model: nn.Module) -> bool:
    """Return whether layers have a window that they do not pass to attention."""
    target = _target(model)
    model.set_attn_implementation(IMPLEMENTATION)  # type: ignore[operator]
    return bool(target_check.probe_shapes(target, CPU).masked)


def _line(error: Exception) -> str:
    """Return an error's text without measured differences, in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = re.sub(r"\d\.\de[+-]\d\d", "X", text)
    return text if isinstance(error, LoadError) else f"{type(error).__name__}: {text}"[:160]


def _write(names: list[str]) -> None:
    known = recorded() if FILE.exists() and names else {}
    for name in names or CLASSES:
        known[name] = outcomes_of(name)
        for outcome in known[name]:
            sys.stderr.write(f"{name} {outcome}\n")
    of = {name: [asdict(outcome) for outcome in known[name]] for name in sorted(known)}
    content = {"transformers": transformers.__version__, "of": of}
    FILE.write_text(f"{json.dumps(content, indent=1)}\n", encoding="utf-8")


if __name__ == "__main__":
    _write(sys.argv[1:])
