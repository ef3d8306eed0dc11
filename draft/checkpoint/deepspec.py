"""Reads DeepSpec's config.json: the target's config with the draft's fields added."""

from draft.checkpoint.backbone_fields import check_fits
from draft.checkpoint.draft_fields import read_draft
from draft.checkpoint.fields import Fields
from draft.config import DSparkConfig, TargetFacts, check_taps
from draft.errors import DraftLoadError

_ARCHITECTURE = "Qwen3DSparkModel"
_UNSUPPORTED = {
    "Gemma4DSparkModel": "values are normed keys without a projection of their own, embeddings "
    "are scaled and logits capped; none of this is implemented",
}


def read_deepspec(fields: Fields, *, target: TargetFacts) -> DSparkConfig:
    """Convert a DeepSpec config to a DSparkConfig.

    Raises DraftLoadError for a field that is missing, unknown, or does not fit the target.
    """
    _check_architecture(fields)
    check_fits(fields, "num_target_layers", target.num_layers, found=target.num_layers)
    taps = fields.integers("target_layer_ids")
    check_taps("target_layer_ids", taps, num_layers=target.num_layers)
    ties_embeddings = fields.flag("tie_word_embeddings", default=False)
    return read_draft(
        fields, fields, target=target, tap_layers=taps, ties_embeddings=ties_embeddings
    )


def _check_architecture(fields: Fields) -> None:
    found = fields.find("architectures")
    name = found[0] if isinstance(found, list) and found else found
    name = None if name is None else str(name)
    if name == _ARCHITECTURE:
        return
    accepted = _ARCHITECTURE
    if name in _UNSUPPORTED:
        accepted += f" (of {name}, {_UNSUPPORTED[name]})"
    raise DraftLoadError("architectures", found=name, accepted=accepted)
