"""Binds a draft network's parameters to the structs that draft_round.h reads."""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from draft import DecoderVariant, DSparkNetwork
from draft.network.heads import MarkovHead
from draft.network.int8_linear import Int8Linear, is_matrix
from draft.network.network import DraftLayer
from draft.network.norm import RMSNorm
from engine.cpu_kernels.compiling import CpuKernelsUnavailable, KernelLibrary
from engine.cpu_kernels.draft_structs import ChainStruct, DraftLayerStruct, DraftStruct
from engine.cpu_kernels.weights import has_bias, is_readable, matrices_of
from kv_pool import KVPool

CHAIN_COLUMNS = 64  # of draft_chain.h


@dataclass(frozen=True, slots=True)
class Binding:
    """The structs of a network, and the tensors that they point to."""

    run: Any  # the kernel for the matrices' dtype
    draft: DraftStruct
    layers: ctypes.Array[DraftLayerStruct]
    snapshot: "NetworkSnapshot"
    kept: tuple[Tensor, ...]
    chain_reason: str | None  # why PyTorch picks the tokens; None where the kernel does


class NetworkSnapshot:
    """The identities of a network's modules, tensors and hooks, to detect later changes quickly.

    A kernel reads parameters that are changed in place. The snapshot detects replaced tensors and
    modules, and new hooks.
    """

    def __init__(self, network: nn.Module) -> None:
        modules = list(network.modules())
        self._children = [m._modules for m in modules if m._modules]
        self._tensors = [d for m in modules for d in (m._parameters, m._buffers) if d]
        self._hooks = [h for m in modules for h in (m._forward_hooks, m._forward_pre_hooks)]
        self._taken = self._identities()

    @property
    def is_current(self) -> bool:
        return self._identities() == self._taken

    @property
    def has_hooks(self) -> bool:
        return any(self._hooks)

    def _identities(self) -> list[int]:
        found = [id(child) for children in self._children for child in children.values()]
        found += [_address(t) for tensors in self._tensors for t in tensors.values()]
        found.append(sum(map(len, self._hooks)))
        return found


def bind(network: DSparkNetwork, pool: KVPool, kernels: KernelLibrary) -> Binding:
    """Bind a network and its part of the pool.

    Raises CpuKernelsUnavailable with the reason when the kernels do not support the network.
    """
    config = network.config
    if any(layer.sliding_window is not None or layer.causal for layer in config.layers):
        raise CpuKernelsUnavailable("it has sliding or causal layers")
    if config.attention_bias:
        raise CpuKernelsUnavailable("its attention has biases")
    differing = _differences(config.variant)
    if differing:
        raise CpuKernelsUnavailable(f"its decoder differs from Qwen3's: {', '.join(differing)}")
    if not kernels.has_head_dim(config.head_dim):
        raise CpuKernelsUnavailable(f"there is no code for a head_dim of {config.head_dim}")
    snapshot = NetworkSnapshot(network)
    if snapshot.has_hooks:
        raise CpuKernelsUnavailable("it has hooks, which the kernels do not call")
    keeper = _Keeper(network.lm_head)
    run = kernels.draft_round.get(keeper.dtype)
    if run is None:
        raise CpuKernelsUnavailable(f"its matrices are of {keeper.dtype}")
    chain, chain_reason = _chain(network, keeper)
    structs = [
        _layer(layer, pool.draft_keys[i], pool.draft_values[i], keeper)
        for i, layer in enumerate(network.layers)
        if isinstance(layer, DraftLayer)
    ]
    layers = (DraftLayerStruct * len(structs))(*structs)
    draft = DraftStruct(
        num_layers=len(structs),
        hidden=config.hidden_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        inner=config.intermediate_size,
        num_slots=config.num_slots,
        first_slot=config.num_slots - config.block_size,
        mask_id=config.mask_token_id,
        num_tokens=config.vocab_size,
        num_pool_slots=pool.num_slots,
        num_positions=min(a.rotary.num_positions for a in network.attentions),
        eps=config.rms_norm_eps,
        layers=ctypes.addressof(layers),
        **_embedding(network, keeper),
        final_norm=keeper.norm("norm", network.norm),
        **keeper.matrix("lm_head", network.lm_head, "lm_head"),
        chain=chain,
    )
    return Binding(run, draft, layers, snapshot, tuple(keeper.kept), chain_reason)


def _differences(variant: DecoderVariant) -> list[str]:
    plain = DecoderVariant()
    return [
        f"{field.name} {getattr(variant, field.name)}"
        for field in fields(variant)
        if getattr(variant, field.name) != getattr(plain, field.name)
    ]


def _layer(layer: DraftLayer, keys: Tensor, values: Tensor, keeper: "_Keeper") -> DraftLayerStruct:
    attention, at = layer.self_attn, f"layers.{layer.self_attn.layer}"
    norms: Mapping[str, nn.Module] = {
        "input_norm": layer.input_layernorm,
        "q_norm": attention.q_norm,
        "k_norm": attention.k_norm,
        "post_norm": layer.post_attention_layernorm,
    }
    matrices: dict[str, int | None] = {}
    for name, module in matrices_of(layer).items():
        matrices |= keeper.matrix(f"{at}.{name}_proj", module, name)
    return DraftLayerStruct(
        **matrices,
        **{name: keeper.norm(f"{at}.{name}", module) for name, module in norms.items()},
        rotary=keeper.tensor(f"{at}.rotary", attention.rotary.factors),
        keys=keeper.tensor(f"{at} keys", keys),
        values=keeper.tensor(f"{at} values", values),
    )


def _embedding(network: DSparkNetwork, keeper: "_Keeper") -> dict[str, int]:
    weight = network.embed_tokens.weight
    field = "narrow_embedding" if weight.dtype == torch.bfloat16 else "embedding"
    dtype = torch.bfloat16 if weight.dtype == torch.bfloat16 else torch.float32
    return {field: keeper.tensor("embed_tokens", weight, dtype)}


def _chain(network: DSparkNetwork, keeper: "_Keeper") -> tuple[ChainStruct, str | None]:
    """Bind the chain's parts; the reason is why PyTorch runs the chain, None if the kernel does."""
    config, head, confidence = network.config, network.markov_head, network.confidence_head
    chain = ChainStruct(
        num_outputs=config.num_outputs, block_size=config.block_size, hidden=config.hidden_size
    )
    if network.vocabulary is not None:
        keeper.kept.append(network.vocabulary.target_ids.contiguous())
        chain.target_ids = keeper.kept[-1].data_ptr()
    if head is not None and type(head) is not MarkovHead:
        return chain, f"its Markov head is {config.markov_kind}"
    if head is not None:
        chain.rank = config.markov_rank
        chain.w1 = keeper.tensor("markov_w1", head.markov_w1.weight)
        w2 = keeper.matrix("markov_w2", head.markov_w2, "w2")
        chain.w2, chain.w2_scale = w2["w2"], w2["w2_scale"]
        chain.longest = keeper.tensor("markov_w2", _longest_rows(head.markov_w2))
    if confidence is not None:
        assert confidence.proj.bias is not None
        chain.confidence = keeper.tensor("confidence_head.proj", confidence.proj.weight)
        chain.confidence_bias = keeper.tensor("confidence_head.proj", confidence.proj.bias)
        chain.confidence_rank = config.markov_rank if config.confidence_with_markov else 0
    return chain, None


def _longest_rows(w2: nn.Module) -> Tensor:
    """Return the length of the longest row of each stretch of CHAIN_COLUMNS rows."""
    rows = w2.get_parameter("weight").detach()
    lengths = torch.linalg.vector_norm(rows.float(), dim=1)
    if isinstance(w2, Int8Linear):
        lengths = lengths * w2.scale.detach()
    padding = -len(lengths) % CHAIN_COLUMNS
    return nn.functional.pad(lengths, (0, padding)).view(-1, CHAIN_COLUMNS).amax(dim=1)


class _Keeper:
    """Collects tensors that must live as long as the structs, and returns their addresses.

    Matrices have the dtype of the head, everything else is float32.
    """

    def __init__(self, head: nn.Module) -> None:
        self.kept: list[Tensor] = []
        self.dtype = head.weight.dtype if is_matrix(head) else torch.float32

    def matrix(self, name: str, module: nn.Module, field: str) -> dict[str, int | None]:
        """Return the addresses of rows and scales, by the names of a struct's fields."""
        if not is_matrix(module) or has_bias(module):
            kind = type(module).__name__
            raise CpuKernelsUnavailable(f"{name} is a {kind}, not a linear layer without bias")
        scale = self.tensor(name, module.scale) if isinstance(module, Int8Linear) else None
        rows = self.tensor(name, module.weight, self.dtype)
        return {field: rows, f"{field}_scale": scale}

    def norm(self, name: str, module: nn.Module) -> int:
        if type(module) is not RMSNorm:
            raise CpuKernelsUnavailable(f"{name} is a {type(module).__name__}, not an RMSNorm")
        return self.tensor(name, module.weight)

    def tensor(self, name: str, tensor: Tensor, dtype: torch.dtype = torch.float32) -> int:
        if not is_readable(tensor, dtype):
            raise CpuKernelsUnavailable(f"{name} is a {type(tensor).__name__} of {tensor.dtype}")
        self.kept.append(tensor.detach())
        return tensor.data_ptr()


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
