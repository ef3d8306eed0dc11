"""Measures time to first token of an idle engine, and of the matrix products in it."""

import random
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from draft import LinearFunction, widening_linear
from draft.network.int8_linear import Int8Linear
from dspark.bench.profile.timing import ms, seconds_in_turns
from dspark.bench.report.columns import columns, number
from dspark.bench.report.statistics import Spread, ratio
from dspark.bench.workloads.timing import Case, Samples
from engine.api import EngineSamplingParams, Request
from engine.build import Built
from engine.loading.as_loaded import as_loaded
from engine.loading.draft import LoadedDraft

_PROMPT = 400  # tokens
_ENGINE, _PRODUCTS, _PYTORCH = "through the engine", "its products alone", "the same by PyTorch"


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Time to first token of one prompt on an idle engine with an empty prefix cache."""

    prompt_len: int
    seconds: Samples  # of _ENGINE, _PRODUCTS and _PYTORCH

    @property
    def times_the_products(self) -> Spread | None:
        """Return the whole time relative to that of the products."""
        return ratio(self.seconds[_ENGINE], self.seconds[_PRODUCTS])

    def lines(self) -> list[str]:
        title = f"first token of {self.prompt_len} at idle"
        rows = [(name, number(ms(list(values)))) for name, values in self.seconds.items()]
        return columns(
            [(title, "ms"), *rows, ("engine / products", number(self.times_the_products))]
        )

    def values(self) -> Mapping[str, object]:
        whole = self.times_the_products
        return {
            "prompt_tokens": self.prompt_len,
            "ttft_ms": ms(self.seconds[_ENGINE]).values(),
            "products_ms": ms(self.seconds[_PRODUCTS]).values(),
            "products_by_pytorch_ms": ms(self.seconds[_PYTORCH]).values(),
            "ttft_of_products": None if whole is None else whole.values(),
        }


def measure_first_token(built: Built, *, turns: int, device: torch.device) -> FirstToken:
    """Time the cases on an idle engine; flushes the prefix cache."""
    prompt_len = min(_PROMPT, built.engine.info.served_max_len - 1)
    cases = {
        _ENGINE: prompt_case(built, prompt_len),
        _PRODUCTS: products_case(built, prompt_len, device, built.linear),
        _PYTORCH: _by_pytorch(built, prompt_len, device),
    }
    found = FirstToken(prompt_len, seconds_in_turns(cases, turns=turns, device=device, warm_up=1))
    built.engine.flush_cache()
    return found


def prompt_case(built: Built, prompt_len: int) -> Case:
    """Return a case that prefills an uncached prompt and generates one token."""
    engine = built.engine
    token_ids = range(built.target.vocab_size)
    prompt = tuple(random.Random(0).choices(token_ids, k=prompt_len))
    request = Request(
        "first-token", prompt, EngineSamplingParams(max_new_tokens=1, temperature=0.0)
    )

    def run() -> None:
        engine.flush_cache()
        engine.add(request)
        while not engine.is_idle:
            engine.step()

    return run


def products_case(built: Built, rows: int, device: torch.device, linear: LinearFunction) -> Case:
    """Return a case with the matrix products of the step.

    All rows pass the target's layers and the draft's context matrices, the last row the head.
    `linear` is the product of the draft.
    """
    head = built.target.parts.lm_head
    layers = [m for m in built.target.parts.layers.modules() if type(m) in (nn.Linear, Int8Linear)]
    context = _context_weights(built.draft)
    widths = {int(w.shape[1]) for w in [*map(_weight, (*layers, head)), *context]}
    x = {width: torch.randn(rows, width, device=device).to(built.target.dtype) for width in widths}

    def run() -> None:
        for layer in layers:
            layer(x[_weight(layer).shape[1]])
        head(x[_weight(head).shape[1]][-1:])
        for weight in context:
            linear(x[weight.shape[1]], weight, None)

    return run


def _by_pytorch(built: Built, rows: int, device: torch.device) -> Case:
    run = products_case(built, rows, device, widening_linear)

    def as_pytorch_does() -> None:
        with as_loaded(built.target.model):
            run()

    return as_pytorch_does


def _context_weights(draft: LoadedDraft | None) -> list[Tensor]:
    """Return the context matrices of a draft; empty without one."""
    if draft is None:
        return []
    projections = [p for a in draft.network.attentions for p in a.kv_projections]
    return [_weight(module) for module in (draft.network.fc, *projections)]


def _weight(module: nn.Module) -> Tensor:
    return module.get_parameter("weight")
