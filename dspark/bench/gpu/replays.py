"""Checks replayed graphs of both models against eager passes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from draft import BlockRequest, BlockSampling, DraftBlock
from dspark.bench.gpu.checks import PAGE_SIZE, TOLERANCE
from dspark.bench.gpu.engines import engine_of
from dspark.bench.gpu.pairs import SMALL, TINY, Pair, make_pair
from dspark.bench.gpu.results import Check, Found
from engine.build import Built
from engine.runner.batch import batch_of_rows

_LENGTHS = (20, 25, 30)  # tokens of three prompts: a capture size of four is padded
_TABLES = ([0, 3, 6], [1, 4, 7], [2, 5, 8])


def graphs(device: torch.device, tiny: bool) -> Found:
    """Check logits and taps of full and short windows, and drafts with their distributions."""
    shape = TINY if tiny else SMALL
    dtypes = [torch.float32] if tiny else [torch.float32, torch.bfloat16]
    for dtype in dtypes:
        pair = make_pair(shape, dtype=dtype, device=device, max_len=256)
        found, expected = (_passes(pair, device, graphs=mode) for mode in ("auto", "off"))
        if found.no_graphs is not None:
            yield Check(f"graphs against eager, {dtype}", False, f"no graphs: {found.no_graphs}")
            continue
        worst = max(map(_difference, found.windows, expected.windows))
        yield Check(
            f"graphs against eager, {dtype}",
            worst <= 3 * TOLERANCE[dtype],
            f"{worst:.1e} of the largest",
        )
        for name, mine, theirs in zip(
            ("greedy", "drawn"), found.drafts, expected.drafts, strict=True
        ):
            yield _compared(f"draft graphs against eager, {name}, {dtype}", mine, theirs, dtype)


def _compared(name: str, found: DraftBlock, expected: DraftBlock, dtype: torch.dtype) -> Check:
    """Compare drafts; only values of the first position always have the same prefix."""
    assert found.confidence_logits is not None
    assert expected.confidence_logits is not None
    pairs = [(found.confidence_logits[:, 0], expected.confidence_logits[:, 0])]
    if found.draft_probs is not None and expected.draft_probs is not None:
        pairs.append((found.draft_probs[:, 0], expected.draft_probs[:, 0]))
    worst = max(_difference(a, b) for a, b in pairs)
    same = int((found.draft_ids == expected.draft_ids).sum())
    count = expected.draft_ids.numel()
    right = worst <= 10 * TOLERANCE[dtype] and (same == count or dtype != torch.float32)
    return Check(name, right, f"{worst:.1e} of the largest, {same} of {count} tokens")


@dataclass(frozen=True, slots=True)
class _Passes:
    windows: tuple[Tensor, Tensor]  # logits and taps of three verify windows
    drafts: tuple[DraftBlock, DraftBlock]  # greedy and sampled
    no_graphs: object  # the reason, if there are none


@torch.inference_mode()
def _passes(pair: Pair, device: torch.device, *, graphs: str) -> _Passes:
    built = engine_of(pair, device, graphs=graphs, num_pages=16, max_running_requests=4)
    ids = torch.arange(40, device=device) * 7919 % pair.target.vocab_size
    texts = (ids, ids.flip(0), ids.roll(7))
    prompts = [(*each, 0, length) for *each, length in zip(texts, _TABLES, _LENGTHS, strict=True)]
    batch = batch_of_rows(prompts, page_size=PAGE_SIZE)  # type: ignore[arg-type]
    output = built.runner.forward(batch)
    built.proposer.write_context(output.aux_hidden, batch.positions, batch.slot_mapping)
    anchors = torch.stack([text[at] for text, at in zip(texts, _LENGTHS, strict=True)])
    drafts = _block(built, anchors, draws=False), _block(built, anchors, draws=True)
    width = built.proposer.block_size + 1
    windows = [
        (text, table, start, start + width - short)
        for text, table, start, short in zip(texts, _TABLES, _LENGTHS, (0, 3, 0), strict=True)
    ]
    output = built.runner.forward(batch_of_rows(windows, page_size=PAGE_SIZE))
    graphs_info = built.engine.info.details["graphs"]
    windows_of = output.logits.clone(), output.aux_hidden.clone()
    return _Passes(windows_of, drafts, graphs_info["reason"])  # type: ignore[index]


def _block(built: Built, anchors: Tensor, *, draws: bool) -> DraftBlock:
    device, proposer = anchors.device, built.proposer
    starts = torch.tensor(_LENGTHS, device=device)
    at = starts[:, None] + torch.arange(proposer.num_slots, device=device)  # (B, N)
    pages = torch.tensor(_TABLES, device=device).gather(1, at // PAGE_SIZE)
    sampling = None
    if draws:
        size = len(_LENGTHS), proposer.block_size
        sampling = BlockSampling(
            rows=torch.arange(size[0], device=device),
            temperatures=torch.full(size[:1], 0.7, device=device),
            uniforms=torch.full(size, 0.4, dtype=torch.float64, device=device),
        )
    return proposer.propose(
        BlockRequest(
            anchor_ids=anchors,
            anchor_positions=starts,
            slots=pages * PAGE_SIZE + at % PAGE_SIZE,
            page_tables=_TABLES,
            context_lens=_LENGTHS,
            sampling=sampling,
        )
    )


def _difference(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference relative to the largest expected value."""
    a, b = found.float(), expected.float()
    return float((a - b).abs().max() / b.abs().max())
