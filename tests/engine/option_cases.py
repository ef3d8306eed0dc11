"""Every option of a request, each with a value that changes what a tiny model says."""

from __future__ import annotations

from collections import Counter

import torch
from transformers import LogitsProcessor


class OpenAIPenalties(LogitsProcessor):  # type: ignore[misc]
    """presence_penalty and frequency_penalty by the API's own formula, one token at a time."""

    def __init__(self, num_prompt: int, *, presence: float, frequency: float) -> None:
        self._num_prompt = num_prompt
        self._presence = presence
        self._frequency = frequency

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        for row, ids in zip(scores, input_ids.tolist(), strict=True):
            for token_id, count in Counter(ids[self._num_prompt :]).items():
                row[token_id] -= count * self._frequency + self._presence
        return scores
