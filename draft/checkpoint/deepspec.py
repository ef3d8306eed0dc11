"""Reads DeepSpec's config.json: the target's config with the draft's fields added."""

from draft.checkpoint.backbone_fields import check_fits
from draft.checkpoint.decoder_variants import DECODERS
from draft.checkpoint.draft_fields import read_draft
from draft.checkpoint.fields import Fields
from draft.config import DSparkConfig, TargetFacts, check_taps
from draft.errors import DraftLoadError


def read_deepspec(fields: Fields, *, target: TargetFacts) -> DSparkConfig:
    """Convert a DeepSpec config to a DSparkConfig.

    Raises DraftLoadError for a field that is missing, unknown, or does not fit the target.
    """
    decoder = DECODERS[_architecture(fields)]
    check_fits(fields, "num_target_layers", target.num_layers, found=target.num_layers)
    taps = fields.integers("target_layer_ids")
    check_taps("target_layer_ids", taps, num_layers=target.num_layers)
    ties_embeddings = fields.flag("tie_word_embeddings", default=False)
    return read_draft(
        fields,
        fields,
        decoder(fields),
        target=target,
        tap_layers=taps,
        ties_embeddings=ties_embeddings,
    )


def _architecture(fields: Fields) -> str:
    found = fields.find("architectures")
    name = found[0] if isinstance(found, list) and found else found
    if str(name) not in DECODERS:
        raise DraftLoadError("architectures", found=name, accepted=" or ".join(DECODERS))
    return str(name)
