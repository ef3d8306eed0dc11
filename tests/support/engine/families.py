"""Tiny random models of the decoder families of transformers, and what is expected of each."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from engine.loading.servable import refuse_unservable
from engine.loading.target import LoadedTarget, describe_target

VOCAB = 97
WINDOW = 30  # more than the tokens of the shortest check

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
_MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
_ENDS_FULL = ["sliding_attention", "full_attention", "full_attention"]
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "num_key_value_heads": 4,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
_OWN_SIZES = ("recurrent_gemma", "falcon_h1", "qwen3_next", "deepseek_v32", "glm_moe_dsa", "mamba")
_ROTATED_WHOLE = {"rotary_dim": 8}


@dataclass(frozen=True)
class Family:
    """One family: the fields that its tiny model changes, and the refusal if it is refused."""

    model_type: str
    changes: dict[str, Any]
    refusal: str | None = None  # None: served exactly

    def model(self, **changes: Any) -> nn.Module:
        """Build a float32 model with random weights and biases."""
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(
            self.config(**changes), attn_implementation="eager"
        )
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):  # transformers starts them at zero
                nn.init.normal_(parameter, std=0.3)
        return model.eval().requires_grad_(False)  # type: ignore[no-any-return]

    def config(self, **changes: Any) -> Any:
        names = () if self.model_type in _OWN_SIZES else _SIZES
        sizes = {name: _SIZES[name] for name in names}
        return AutoConfig.for_model(self.model_type, **{**sizes, **self.changes, **changes})

    def target(self) -> LoadedTarget:
        """Load as the engine does. Raises LoadError for a refused family."""
        refuse_unservable(self.config().get_text_config())
        return describe_target(self.model(), max_len=100, dtype=torch.float32)


_INTERFACE = "do not call transformers' attention interface"
_STATE = "their state is not a list of keys and values"

FAMILIES: dict[str, Family] = {
    name: Family(*values)
    for name, values in {
        "Apertus": ("apertus", {}),
        "Arcee": ("arcee", {}),
        "BioGPT": ("biogpt", {}),
        "BitNet": ("bitnet", {}),
        "CodeGen": ("codegen", _ROTATED_WHOLE),
        "Cohere": ("cohere", {}),
        "Cohere 2": ("cohere2", {"sliding_window": WINDOW, "layer_types": _MIXED}),
        "CWM": ("cwm", {"sliding_window": WINDOW, "layer_types": _MIXED}),
        "DeepSeek V2": ("deepseek_v2", _LATENT),
        "DeepSeek V3": ("deepseek_v3", _LATENT),
        "Ernie 4.5": ("ernie4_5", {}),
        "EXAONE 4": ("exaone4", {"sliding_window": WINDOW, "layer_types": _MIXED}),
        "Gemma": ("gemma", {"head_dim": 8}),
        "Gemma 2": ("gemma2", {"head_dim": 8, "sliding_window": WINDOW, "layer_types": _MIXED}),
        "Gemma 3": (
            "gemma3_text",
            {"head_dim": 8, "sliding_window": WINDOW, "layer_types": _MIXED},
        ),
        "Gemma 4": (
            "gemma4_text",
            {
                "head_dim": 8,
                "global_head_dim": 16,
                "num_global_key_value_heads": 1,
                "attention_k_eq_v": True,
                "hidden_size_per_layer_input": 0,
                "sliding_window": WINDOW,
                "layer_types": _ENDS_FULL,
            },
        ),
        "GLM": ("glm", {"head_dim": 8}),
        "GLM 4": ("glm4", {"head_dim": 8}),
        "GPT-2": ("gpt2", {}),
        "GPT-BigCode": ("gpt_bigcode", {}),
        "GPT-J": ("gptj", _ROTATED_WHOLE),
        "GPT-NeoX": ("gpt_neox", {}),
        "gpt-oss": (
            "gpt_oss",
            {
                **_LOCAL_EXPERTS,
                "head_dim": 8,
                "sliding_window": WINDOW,
                "layer_types": _MIXED,
                "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            },
        ),
        "Granite": ("granite", {}),
        "Granite MoE": ("granitemoe", _LOCAL_EXPERTS),
        "Helium": ("helium", {"head_dim": 8}),
        "HunYuan dense": ("hunyuan_v1_dense", {"head_dim": 8}),
        "Llama": ("llama", {}),
        "Ministral": (
            "ministral",
            {"head_dim": 8, "sliding_window": WINDOW, "layer_types": _MIXED},
        ),
        "Mistral": ("mistral", {"sliding_window": WINDOW}),
        "Mixtral": ("mixtral", {**_LOCAL_EXPERTS, "sliding_window": WINDOW}),
        "Nemotron": ("nemotron", {}),
        "OLMo": ("olmo", {}),
        "OLMo 2": ("olmo2", {}),
        "OLMo 3": ("olmo3", {"sliding_window": WINDOW, "layer_types": _MIXED}),
        "OLMoE": ("olmoe", _EXPERTS),
        "OPT": ("opt", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
        "Phi": ("phi", {}),
        "Phi-3": ("phi3", {"sliding_window": WINDOW}),
        "PhiMoE": ("phimoe", {**_LOCAL_EXPERTS, "sliding_window": WINDOW}),
        "Qwen 2": (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": WINDOW, "layer_types": _MIXED},
        ),
        "Qwen 2 MoE": (
            "qwen2_moe",
            {
                **_EXPERTS,
                "shared_expert_intermediate_size": 16,
                "use_sliding_window": True,
                "sliding_window": WINDOW,
                "layer_types": _MIXED,
            },
        ),
        "Qwen 3": ("qwen3", {"head_dim": 8}),
        "Qwen 3 MoE": ("qwen3_moe", {**_EXPERTS, "head_dim": 8}),
        "Seed-OSS": ("seed_oss", {"head_dim": 8}),
        "SmolLM 3": ("smollm3", {}),
        "StableLM": ("stablelm", {}),
        "Starcoder 2": ("starcoder2", {"sliding_window": WINDOW}),
        "BLOOM": ("bloom", {}, _INTERFACE),
        "DeepSeek V3.2": ("deepseek_v32", {}, "an index selects the tokens"),
        "DiffLlama": ("diffllama", {}, "attend more than once in a pass"),
        "Falcon": ("falcon", {}, _INTERFACE),
        "Falcon-H1": ("falcon_h1", {}, _STATE),
        "GLM MoE DSA": ("glm_moe_dsa", {}, "an index selects the tokens"),
        "GPT-Neo": ("gpt_neo", {"attention_types": [[["global"], 3]]}, _INTERFACE),
        "LFM 2": ("lfm2", {"layer_types": ["conv", "full_attention", "conv"]}, _STATE),
        "Llama 4": ("llama4_text", {}, "attend within chunks"),
        "Mamba": ("mamba", {}, _STATE),
        "MPT": ("mpt", {}, _INTERFACE),
        "Qwen 3 Next": ("qwen3_next", {}, _STATE),
        "RecurrentGemma": ("recurrent_gemma", {}, _STATE),
        "XGLM": ("xglm", {}, _INTERFACE),
    }.items()
}
