"""A served draft reproduces the numbers of the original implementation."""

import random
from collections.abc import Iterator

import pytest
import torch

from draft import BlockRequest, ContextKVMode, DSparkProposer
from tests.support.draft.chains import corrected_logits
from tests.support.draft.golden import FOLDERS, Round, assert_golden, load_golden, rounds_of
from tests.support.draft.tiny import (
    block_request,
    new_pool,
    reference_attention,
    shuffled_tables,
    slots_of,
)


def test_there_are_seven_folders() -> None:
    assert len(FOLDERS) == 7


# The original's confidences are this far from a float64 evaluation of the same weights: attention
# with scale 1 amplifies rounding.
_CONFIDENCE_TOLERANCE = {"gemma4_shared_kv": 2.1e-5}


class _Served:
    """Serves one golden checkpoint, with one sequence in shuffled pages."""

    def __init__(self, name: str, *, page_size: int = 4, mode: ContextKVMode = "auto") -> None:
        self.config, self.network = load_golden(name)
        self.pool = new_pool(self.config, page_size=page_size)
        self.proposer = DSparkProposer(
            network=self.network,
            pool=self.pool,
            attention=reference_attention(self.pool),
            context_kv=mode,
        )
        self.table = shuffled_tables(self.pool, [64])[0]

    def write(self, golden: Round, chunks: list[int]) -> None:
        start = 0
        for size in chunks:
            positions = golden.start + start
            self.proposer.write_context(
                golden["target_hidden"][start : start + size],
                torch.arange(positions, positions + size),
                slots_of(self.table, positions, positions + size),
            )
            start += size
        assert start == len(golden["target_hidden"])

    def request(self, golden: Round) -> BlockRequest:
        anchor_id = int(golden["draft_input_ids"][0])
        return block_request(
            [anchor_id], [golden.anchor], [self.table], num_slots=self.config.num_slots
        )


def _random_chunks(total: int, seed: int) -> list[int]:
    source = random.Random(seed)
    chunks: list[int] = []
    while sum(chunks) < total:
        chunks.append(source.randint(1, min(4, total - sum(chunks))))
    return chunks


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("mode", ["on", "off"])
@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("name", FOLDERS)
def test_both_rounds_give_the_original_tokens_and_confidences(
    name: str, page_size: int, mode: ContextKVMode
) -> None:
    served = _Served(name, page_size=page_size, mode=mode)
    for golden in rounds_of(name):
        served.write(golden, [len(golden["target_hidden"])])
        block = served.proposer.propose(served.request(golden))
        assert torch.equal(block.draft_ids[0], golden["draft_tokens"])
        assert block.draft_probs is None
        if "confidence_logits" in golden.tensors:
            assert block.confidence_logits is not None
            tolerance = _CONFIDENCE_TOLERANCE.get(name, 1e-5)
            found = block.confidence_logits[0]
            assert_golden(found, golden["confidence_logits"], tolerance=tolerance)
        else:
            assert block.confidence_logits is None


@pytest.mark.parametrize("mode", ["on", "off"])
@pytest.mark.parametrize("seed", [None, 0, 1, 2])
@pytest.mark.parametrize("name", FOLDERS)
def test_context_written_in_any_chunks_is_the_original_context(
    name: str, seed: int | None, mode: ContextKVMode
) -> None:
    served = _Served(name, mode=mode)
    assert served.proposer.context_kv_path == ("stacked" if mode == "on" else "per_layer")
    for golden in rounds_of(name):
        total = len(golden["target_hidden"])
        served.write(golden, [total] if seed is None else _random_chunks(total, seed))
        slots = slots_of(served.table, golden.start, golden.anchor)
        assert_golden(served.pool.draft_keys[:, slots], golden["context_k"])
        assert_golden(served.pool.draft_values[:, slots], golden["context_v"])


@pytest.mark.parametrize("name", FOLDERS)
def test_every_tensor_between_taps_and_logits_is_the_original_one(name: str) -> None:
    served = _Served(name)
    network = served.network
    for golden in rounds_of(name):
        assert_golden(network.project_taps(golden["target_hidden"]), golden["context_hidden"])
        served.write(golden, [len(golden["target_hidden"])])
        request = served.request(golden)
        ids = network.block_ids(request.anchor_ids)
        assert torch.equal(ids[0], golden["draft_input_ids"])
        done = served.proposer.run_torch_pass(request)
        hidden, base_logits = done.hidden[0], done.base_logits[0]
        assert_golden(hidden, golden["block_hidden"])
        assert_golden(base_logits, golden["base_logits"])
        corrected = corrected_logits(
            network.markov_head, hidden, base_logits, ids[0, 0], golden["draft_tokens"]
        )
        assert_golden(corrected, golden["draft_logits"])
