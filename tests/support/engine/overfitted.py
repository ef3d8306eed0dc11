"""A tiny draft that knows a few texts by heart, however its checkpoint is then declared."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from draft import DSparkNetwork
from engine.loading.target import LoadedTarget, dense_reference
from tests.support.engine.tiny_models import load_tiny_draft, write_tiny_draft

NUM_SLOTS = 4


def write_overfitted_draft(
    folder: Path,
    target: LoadedTarget,
    texts: Sequence[Sequence[int]],
    *,
    taps: Sequence[int],
    samples: bool,
    num_steps: int = 130,
) -> Path:
    """Trained on these texts with these taps, in the given slot convention, and declared so."""
    write_tiny_draft(folder, block_size=NUM_SLOTS, target_layer_ids=list(taps))
    network = load_tiny_draft(folder, target).network
    own = {n: p for n, p in network.named_parameters() if n not in _LENT}
    for parameter in own.values():
        parameter.requires_grad_(True)
    lessons = [_Lesson(target, text, taps=taps, samples=samples) for text in texts]
    optimizer = torch.optim.Adam(own.values(), lr=4e-3)
    for _ in range(num_steps):
        optimizer.zero_grad()
        torch.stack([lesson.loss(network) for lesson in lessons]).mean().backward()
        optimizer.step()
    save_file({n: p.detach() for n, p in own.items()}, folder / "model.safetensors")
    declare(folder, sample_from_anchor=samples)
    return folder


def declare(folder: Path, **fields: Any) -> None:
    """Change what the checkpoint says of itself."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


_LENT = ("embed_tokens.weight", "lm_head.weight")


class _Lesson:
    """Every place of one text, all blocks at once."""

    def __init__(
        self, target: LoadedTarget, text: Sequence[int], *, taps: Sequence[int], samples: bool
    ) -> None:
        ids = torch.tensor(text)
        with torch.no_grad():
            _, self._aux = dense_reference(target.model, tuple(taps), ids[None])
        anchors = torch.arange(1, len(ids) - NUM_SLOTS)
        self._positions = anchors[:, None] + torch.arange(NUM_SLOTS)
        predicted = self._positions + (1 if samples else 0)
        self._anchor_ids = ids[anchors]
        self._labels = ids[predicted]
        self._before = ids[torch.maximum(predicted - 1, anchors[:, None])]
        self._first = 0 if samples else 1  # slot that predicts the first token

    def loss(self, network: DSparkNetwork) -> Tensor:
        block = _DenseBlocks(network, self._aux, self._positions)
        hidden = network.hidden(network.block_ids(self._anchor_ids), self._positions, block)
        logits = network.lm_head(hidden)
        head = network.markov_head
        assert head is not None
        logits = logits + head.markov_w2(head.embed(self._before))
        first = self._first
        return F.cross_entropy(logits[:, first:].flatten(0, 1), self._labels[:, first:].flatten())


class _DenseBlocks:
    """BlockAttend of B blocks over one context: before the own anchor, and the own block."""

    def __init__(self, network: DSparkNetwork, aux: Tensor, positions: Tensor) -> None:
        context, at = network.project_taps(aux), torch.arange(len(aux))
        rotations = network.rotations(at)
        self._context = [a.keys_values(context, rotations[a.rotary]) for a in network.attentions]
        num_blocks, width = positions.shape
        owner = torch.arange(num_blocks).repeat_interleave(width)
        before = at < positions[:, :1].expand(-1, width).flatten()[:, None]
        self._sees = torch.cat([before, owner[:, None] == owner], dim=1)

    def attend(
        self,
        layer: int,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        scale: float,
        window: int | None,
    ) -> Tensor:
        context_keys, context_values = self._context[layer]
        out = F.scaled_dot_product_attention(
            query.transpose(0, 1)[None],
            torch.cat([context_keys, keys]).transpose(0, 1)[None],
            torch.cat([context_values, values]).transpose(0, 1)[None],
            attn_mask=self._sees,
            scale=scale,
            enable_gqa=True,
        )
        return out[0].transpose(0, 1)
