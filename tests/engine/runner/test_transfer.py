"""A step's uploads do not wait for the device, whatever options its requests have.

On the meta device copies from the host can be observed, and values cannot be read.
"""

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from engine.runner.batch import build_batch, build_block_request, committed_rows
from engine.runner.transfer import place, upload
from engine.sampling.uniforms import plan_uniforms
from engine.sampling.verify_step import StepOptions
from engine.scheduler.plan import StepPlan
from tests.support.engine.scheduling import Harness, request

META = torch.device("meta")
VOCAB, BLOCK = 1000, 3
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "draws": {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "seed": 1},
    "penalties": {
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.1,
    },
    "biases": {"logit_bias": ((3, 1.5), (8, -2.0))},
    "min tokens": {"min_new_tokens": 8, "stop_token_ids": frozenset({4})},
    "logprobs": {"num_logprobs": 2},
}


class _Copies(TorchDispatchMode):
    """Records whether each copy from the host to the device is blocking."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[bool] = []

    def __enter__(self) -> "_Copies":
        # A dispatch mode does not see the copy of torch.tensor, which always blocks.
        self._patch = patch.object(torch, "tensor", self._tensor(torch.tensor))
        self._patch.start()
        super().__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        super().__exit__(*exc_info)
        self._patch.stop()

    def _tensor(self, make: Any) -> Any:
        def counted(data: Any, **options: Any) -> Tensor:
            if torch.device(options.get("device") or "cpu").type != "cpu":
                self.waits.append(True)
            made: Tensor = make(data, **options)
            return made

        return counted

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        given = kwargs or {}
        result = func(*args, **given)
        if func is torch.ops.aten._to_copy.default and args[0].device.type == "cpu":
            self.waits.append(not given.get("non_blocking", False))
        return result


def drafting_plan(**params: Any) -> StepPlan:
    """Two sequences past their prompts, and a prompt that only begins."""
    harness = Harness(block_size=BLOCK, num_draft_tokens=BLOCK, chunk=64)
    for name in ("a", "b"):
        harness.scheduler.add(request(name, max_new_tokens=40, **params))
    harness.step()
    harness.scheduler.add(request("c", prompt_len=9, **params))
    plan = harness.scheduler.plan()
    assert [scheduled.num_drafts for scheduled in plan.scheduled_seqs] == [BLOCK, BLOCK, 0]
    return plan


def test_a_blocking_copy_is_recorded() -> None:
    with _Copies() as copies:
        torch.zeros(3).to(META)
        torch.tensor([1.0, 2.0], device=META)
    assert copies.waits == [True, True]


@pytest.mark.parametrize("params", OPTIONS.values(), ids=OPTIONS.keys())
def test_no_upload_of_a_step_waits_for_the_device(params: dict[str, Any]) -> None:
    plan = drafting_plan(**params)
    with _Copies() as copies:
        draws = plan_uniforms(plan, block_size=BLOCK, device=META)
        block = draws.of_block(plan, plan.drafting, device=META) if draws is not None else None
        build_block_request(plan.drafting, block, num_slots=BLOCK, device=META)
        StepOptions.of(plan, vocab_size=VOCAB, device=META)
        build_batch(plan, None, device=META)
        upload([committed_rows([(scheduled, 1) for scheduled in plan.scheduled_seqs])], META)
    assert len(copies.waits) >= 3
    assert not any(copies.waits)


def test_uploaded_numbers_keep_their_dtype_and_shape() -> None:
    sent = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert place(sent, torch.device("cpu")).tolist() == sent.tolist()
    assert place(sent, META).dtype == torch.float32
