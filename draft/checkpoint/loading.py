"""Loads a checkpoint into a DSparkNetwork; refuses unknown and missing tensors."""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor, nn

from draft.checkpoint.checkpoint import StoredTensor, list_tensors, read_tensors
from draft.config import DSparkConfig
from draft.errors import DraftLoadError
from draft.network.draft_vocabulary import target_ids_of
from draft.network.network import DSparkNetwork

_EMBEDDING, _LM_HEAD = "embed_tokens.weight", "lm_head.weight"
_DTYPES = {"F64", "F32", "F16", "BF16"}
_INTEGERS = ("I32", "I64")
_MASKS = ("BOOL", "U8")
_ROTARY = "rotary_emb."
_CONFIDENCE = "confidence_head."
_D2T, _T2D = "d2t", "t2d"
# Copies of the target's tensors that some exports contain.
_IGNORED = ("verifier_norm.weight", "verifier_lm_head.weight")


def load_network(
    folder: Path,
    config: DSparkConfig,
    *,
    embedding: Tensor,
    lm_head: Tensor,
    dtype: torch.dtype,
    device: torch.device,
    max_positions: int,
) -> DSparkNetwork:
    """Load a draft that serves sequences of up to max_positions tokens.

    embedding and lm_head, [V, E] each, are the target's. The draft aliases them if dtype and
    device agree, else copies them. If they are not plain tensors (a quantised target), the
    checkpoint must contain its own. With a draft vocabulary, lm_head is the checkpoint's, or else
    a copy of the target's rows.

    Raises DraftLoadError for a tensor that is missing, unknown, not finite, or of another shape
    or dtype.
    """
    with torch.device("meta"):
        network = DSparkNetwork(config, max_positions=max_positions, device=device)
    network.requires_grad_(False).eval()
    expected = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    stored = {name: t for name, t in list_tensors(folder).items() if not _is_ignored(name)}
    maps = {name: stored.pop(name) for name in (_D2T, _T2D) if name in stored}
    target_ids = _read_target_ids(maps, config)
    aliased = _target_tensors(config, embedding=embedding, lm_head=lm_head)
    if target_ids is not None:
        _select_head_rows(aliased, target_ids, stored)
    _check(stored, expected, aliased=set(aliased), tied=config.ties_embeddings)
    wanted = {name: tensor for name, tensor in stored.items() if name not in aliased}
    with torch.inference_mode(False):  # inference tensors could not be changed in place later
        # One tensor at a time: on the host there is never a second copy of the draft.
        tensors = chain(aliased.items(), read_tensors(wanted))
        placed = {name: t.to(device, _dtype(name, dtype)) for name, t in tensors}
        if config.ties_embeddings and _LM_HEAD not in placed:
            placed[_LM_HEAD] = placed[_EMBEDDING]
        _require_finite({name: placed[name] for name in wanted})
        network.load_state_dict(placed, strict=True, assign=True)
        if network.vocabulary is not None and target_ids is not None:
            network.vocabulary.target_ids = target_ids.to(device)
    return network


def _require_finite(tensors: Mapping[str, Tensor]) -> None:
    """Check tensors after their cast: values too large for the new dtype become infinite."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise DraftLoadError(
                name, found=f"NaN or infinity in {tensor.dtype}", accepted="finite numbers"
            )


def _is_ignored(name: str) -> bool:
    return _ROTARY in name or name in _IGNORED


def _read_target_ids(
    maps: Mapping[str, StoredTensor], config: DSparkConfig
) -> Int[Tensor, "Vd"] | None:
    """Read the target id of each draft id; None if the draft has the whole vocabulary."""
    if not maps and config.draft_vocab_size is None:
        return None
    shapes = {_D2T: (config.num_outputs,), _T2D: (config.vocab_size,)}
    for name, dtypes in ((_D2T, _INTEGERS), (_T2D, _MASKS)):
        if name in maps:
            _check_map(name, maps[name], shapes[name], dtypes)
    if _D2T not in maps:
        wanted = f"a tensor {list(shapes[_D2T])} of offsets, because draft_vocab_size is "
        raise DraftLoadError(_D2T, found=None, accepted=f"{wanted}{config.num_outputs}")
    tensors = dict(read_tensors(maps))
    mask = tensors[_T2D].bool() if _T2D in tensors else None
    target_ids = target_ids_of(tensors[_D2T], mask, vocab_size=config.vocab_size)
    if config.draft_vocab_size is None:
        if tensors[_D2T].any():
            wanted = "zeros, because draft_vocab_size is the whole vocabulary"
            raise DraftLoadError(_D2T, found="offsets", accepted=wanted)
        return None
    return target_ids


def _check_map(
    name: str, tensor: StoredTensor, shape: tuple[int, ...], dtypes: Sequence[str]
) -> None:
    if tensor.shape != shape:
        raise DraftLoadError(name, found=list(tensor.shape), accepted=str(list(shape)))
    if tensor.dtype not in dtypes:
        raise DraftLoadError(name, found=tensor.dtype, accepted=" or ".join(dtypes))


def _select_head_rows(
    aliased: dict[str, Tensor], target_ids: Int[Tensor, "Vd"], stored: Mapping[str, StoredTensor]
) -> None:
    """Replace the target's lm_head by its rows of the draft vocabulary.

    If the checkpoint contains lm_head, remove the target's instead.
    """
    head = aliased.pop(_LM_HEAD, None)
    if head is not None and _LM_HEAD not in stored:
        aliased[_LM_HEAD] = head.index_select(0, target_ids.to(head.device))


def _target_tensors(
    config: DSparkConfig, *, embedding: Tensor, lm_head: Tensor
) -> dict[str, Tensor]:
    """Select those of embedding and lm_head that are plain tensors, which the draft can alias."""
    plain = {
        name: tensor.detach()
        for name, tensor in ((_EMBEDDING, embedding), (_LM_HEAD, lm_head))
        if type(tensor) in (Tensor, nn.Parameter) and tensor.dtype.is_floating_point
    }
    for name, tensor in plain.items():
        wanted = (config.vocab_size, config.hidden_size)
        assert tensor.shape == wanted, f"the target's {name} is {tensor.shape}, not {wanted}"
    are_two = len(plain) == 2 and embedding.data_ptr() != lm_head.data_ptr()
    if config.ties_embeddings and are_two:
        accepted = "false, because the target's lm_head and embedding are two matrices"
        raise DraftLoadError("tie_word_embeddings", found=True, accepted=accepted)
    return plain


def _check(
    stored: dict[str, StoredTensor],
    expected: dict[str, tuple[int, ...]],
    *,
    aliased: set[str],
    tied: bool,
) -> None:
    for name, tensor in stored.items():
        if name not in expected:
            accepted = "only tensors of the network that config.json describes"
            raise DraftLoadError(name, found=list(tensor.shape), accepted=accepted)
        if tensor.shape != expected[name]:
            wanted = str(list(expected[name]))
            raise DraftLoadError(name, found=list(tensor.shape), accepted=wanted)
        if tensor.dtype not in _DTYPES:
            raise DraftLoadError(name, found=tensor.dtype, accepted=" or ".join(sorted(_DTYPES)))
    for name, shape in expected.items():
        if name == _LM_HEAD and tied:
            continue
        if name not in stored and name not in aliased:
            raise DraftLoadError(name, found=None, accepted=f"a tensor {list(shape)}")


def _dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    """Select a tensor's dtype. The confidence head stays in float32.

    Confidence logits are small differences of large sums.
    """
    return torch.float32 if name.startswith(_CONFIDENCE) else dtype
