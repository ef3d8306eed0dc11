"""Whole steps on the device "cuda" of a machine without one: one wait, no mixed devices.

Under FakeTensorMode every read of a value and every operation over two devices raises; the shapes
and dtypes of downloads and kernel launches are checked.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException

from engine import EngineSamplingParams, Request
from tests.support.engine.fake_cuda import CUDA, FakeCuda, fake_cuda, fake_engine
from tests.support.engine.running import prompts
from tests.support.engine.tiny_models import VOCAB, write_tiny_draft

pytestmark = [
    pytest.mark.cuda,
    # Weights are counted by their addresses, which are 0.
    pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor"),
    pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler"),
]
NEW_TOKENS = 6
PROMPTS = prompts(3, vocab=VOCAB, low=9)  # before tensors are fakes
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 1.0, "seed": 1},
    "defaults of Qwen3": {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "seed": 1},
    "penalties": {"temperature": 0.8, "repetition_penalty": 1.2, "presence_penalty": 0.5},
    "logprobs": {"num_logprobs": 3, "prompt_logprobs_from": 0},
}


class _Everything:
    def fill(self, draft_ids: object, words: npt.NDArray[np.uint32]) -> None:
        words[:] = 0xFFFF_FFFF

    def commit(self, token_id: int) -> bool:
        return False


@pytest.fixture(scope="module")
def draft_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_draft(tmp_path_factory.mktemp("draft"))


def drive(
    seen: FakeCuda, folder: Path | None, *, graphs: bool, mask: bool = False, **params: Any
) -> list[int]:
    """Serve three requests; return the downloads of each step."""
    built = fake_engine(folder, graphs=graphs)
    seen.num_reads = seen.blocking_uploads = 0  # of steps, not of the start
    downloads = []
    with torch.inference_mode():
        for i, prompt in enumerate(PROMPTS):
            built.engine.add(
                Request(
                    str(i),
                    tuple(prompt),
                    EngineSamplingParams(max_new_tokens=NEW_TOKENS, ignore_eos=True, **params),
                    token_mask=_Everything() if mask else None,
                )
            )
        while not built.engine.is_idle:
            before = len(seen.downloads)
            built.engine.step()
            downloads.append(len(seen.downloads) - before)
    return downloads


# Copies from the host in a decode round: the batch, its place in the window, the pages of both
# models, and the next anchors; sampled ones also uniforms, temperatures, groups and parameters.
UPLOADS = {"greedy": 5, "sampled": 11, "defaults of Qwen3": 11}


@pytest.mark.parametrize("sampling", UPLOADS)
def test_a_round_copies_a_few_times_from_the_host(sampling: str, draft_folder: Path) -> None:
    with fake_cuda() as seen:
        built = fake_engine(draft_folder, graphs=True)
        params = EngineSamplingParams(
            max_new_tokens=4 * NEW_TOKENS, ignore_eos=True, **SAMPLINGS[sampling]
        )
        counts = []
        with torch.inference_mode():
            for i, prompt in enumerate(PROMPTS):
                built.engine.add(Request(str(i), tuple(prompt), params))
            for _ in range(NEW_TOKENS):
                before = seen.uploads
                built.engine.step()
                counts.append(seen.uploads - before)
    assert counts[3:] == [UPLOADS[sampling]] * len(counts[3:])


def test_a_read_of_a_value_and_a_mixed_device_raise() -> None:
    with fake_cuda():
        on_device = torch.zeros(3, device=CUDA)
        with pytest.raises(DataDependentOutputException):
            bool(on_device.sum() > 0)
        with pytest.raises(RuntimeError, match="device"):
            on_device + torch.zeros(3)


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("has_draft", [True, False], ids=["draft", "no draft"])
def test_a_step_waits_once_and_mixes_no_devices(
    sampling: str, graphs: bool, has_draft: bool, draft_folder: Path
) -> None:
    with fake_cuda() as seen:
        folder = draft_folder if has_draft else None
        downloads = drive(seen, folder, graphs=graphs, **SAMPLINGS[sampling])
    assert set(downloads) <= {0, 1}
    assert downloads.count(1) >= NEW_TOKENS
    assert (seen.blocking_uploads, seen.num_reads) == (0, 0)
    assert "_attend" in seen.launches
    assert ("_store_kernel" in seen.launches) == has_draft


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
@pytest.mark.parametrize("sampling", ["greedy", "sampled"])
def test_a_grammar_reads_the_drafts_and_uploads_without_a_wait(
    sampling: str, graphs: bool, draft_folder: Path
) -> None:
    """The host fills masks from tokens: a draft's once or slot by slot, and a window's once."""
    with fake_cuda() as seen:
        downloads = drive(seen, draft_folder, graphs=graphs, mask=True, **SAMPLINGS[sampling])
    assert set(downloads) <= {0, 1}
    assert seen.blocking_uploads == 0
    slots = 1 if sampling == "greedy" else 4
    assert 0 < seen.num_reads <= (slots + 2) * len(downloads)
