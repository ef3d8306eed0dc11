"""Builds random checkpoints in the format of vllm-project/speculators."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

NUM_LAYERS, HEADS, KV_HEADS, DIM, INNER, RANK = 2, 4, 2, 12, 64, 8


class SpeculatorsDraft:
    """Holds a checkpoint in memory; tests may change it before they save it.

    The draft vocabulary is every second token of the target, from the first.
    """

    def __init__(
        self,
        *,
        hidden: int,
        vocab: int,
        draft_vocab: int | None = None,
        taps: tuple[int, ...] = (1, 3, 4),
        kind: str = "vanilla",
        seed: int = 1,
        layer_fields: dict[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        self.num_outputs = draft_vocab or vocab
        self.vocab, self.hidden = vocab, hidden
        self._generator = torch.Generator().manual_seed(seed)
        self.layers: dict[str, Any] = {
            "model_type": "qwen3",
            "head_dim": DIM,
            "hidden_act": "silu",
            "hidden_size": hidden,
            "intermediate_size": INNER,
            "layer_types": ["full_attention"] * NUM_LAYERS,
            "num_attention_heads": HEADS,
            "num_hidden_layers": NUM_LAYERS,
            "num_key_value_heads": KV_HEADS,
            "rope_parameters": {"rope_theta": 20000.0, "rope_type": "default"},
            "tie_word_embeddings": True,  # of the target: not about the draft
            "vocab_size": vocab,
            **(layer_fields or {}),
        }
        self.config: dict[str, Any] = {
            "architectures": ["DSparkSpeculator"],
            "speculators_model_type": "dspark",
            "speculators_version": "0.5.0",
            "speculators_config": {"algorithm": "dspark", "default_proposal_method": "greedy"},
            "aux_hidden_state_layer_ids": list(taps),
            "block_size": 5,
            "draft_vocab_size": self.num_outputs,
            "mask_token_id": vocab - 1,
            "markov_head_type": kind,
            "markov_rank": RANK,
            "sample_from_anchor": True,
            "sliding_window_non_causal": False,
            **fields,
        }
        self.tensors = self._tensors(kind, len(taps))
        if draft_vocab is not None:
            self.set_vocabulary(torch.arange(draft_vocab) * 2 % vocab)

    @property
    def target_ids(self) -> Tensor:
        """Return the target id of each draft id."""
        return torch.arange(self.num_outputs) + self.tensors["d2t"]

    def set_vocabulary(self, target_ids: Tensor) -> None:
        mask = torch.zeros(self.vocab, dtype=torch.bool)
        mask[target_ids] = True
        self.tensors["d2t"] = target_ids - torch.arange(len(target_ids))
        self.tensors["t2d"] = mask

    def save(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        config = {**self.config, "transformer_layer_config": self.layers}
        (folder / "config.json").write_text(json.dumps(config))
        save_file(self.tensors, folder / "model.safetensors")
        return folder

    def _matrix(self, *shape: int) -> Tensor:
        return 0.2 * torch.randn(*shape, generator=self._generator)

    def _norm(self, size: int) -> Tensor:
        return 1 + 0.2 * torch.randn(size, generator=self._generator)

    def _tensors(self, kind: str, num_taps: int) -> dict[str, Tensor]:
        hidden = self.hidden
        tensors = {
            "fc.weight": self._matrix(hidden, num_taps * hidden),
            "hidden_norm.weight": self._norm(hidden),
            "norm.weight": self._norm(hidden),
            "markov_head.markov_w1.weight": self._matrix(self.vocab, RANK),
            "markov_head.markov_w2.weight": self._matrix(self.num_outputs, RANK),
            "confidence_head.proj.weight": self._matrix(1, hidden + RANK),
            "confidence_head.proj.bias": self._matrix(1),
        }
        if kind == "rnn":
            tensors["markov_head.joint_proj.weight"] = self._matrix(3 * RANK, 2 * RANK + hidden)
            tensors["markov_head.joint_proj.bias"] = self._matrix(3 * RANK)
        for i in range(NUM_LAYERS):
            at = f"layers.{i}"
            tensors |= {
                f"{at}.input_layernorm.weight": self._norm(hidden),
                f"{at}.post_attention_layernorm.weight": self._norm(hidden),
                f"{at}.self_attn.q_proj.weight": self._matrix(HEADS * DIM, hidden),
                f"{at}.self_attn.k_proj.weight": self._matrix(KV_HEADS * DIM, hidden),
                f"{at}.self_attn.v_proj.weight": self._matrix(KV_HEADS * DIM, hidden),
                f"{at}.self_attn.o_proj.weight": self._matrix(hidden, HEADS * DIM),
                f"{at}.self_attn.q_norm.weight": self._norm(DIM),
                f"{at}.self_attn.k_norm.weight": self._norm(DIM),
                f"{at}.mlp.gate_proj.weight": self._matrix(INNER, hidden),
                f"{at}.mlp.up_proj.weight": self._matrix(INNER, hidden),
                f"{at}.mlp.down_proj.weight": self._matrix(hidden, INNER),
            }
        return tensors
