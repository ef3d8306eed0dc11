"""The DSpark draft model: proposes a block of tokens from the target's hidden states.

proposer/     draft pass over a block, Markov sampling, confidence logits
context/      context KV writer: tapped hidden states to the KV of all draft layers
network/      the network: attention, Markov head, confidence head, draft vocabulary
checkpoint/   DeepSpec and speculators checkpoints: config readers, weights, calibration
calibration   fits the confidence head's temperatures
"""

from draft.checkpoint.loading import load_network
from draft.checkpoint.reading import read_config
from draft.config import DecoderVariant, DSparkConfig, LayerConfig, TargetFacts
from draft.context.context_kernel import ContextKernel
from draft.context.context_kv import ContextKVMode, ContextKVPath, ContextKVWriter
from draft.errors import DraftLoadError
from draft.network.linear import LinearFunction, replace_linears, widening_linear
from draft.network.network import DSparkNetwork
from draft.proposer.block import BlockRequest, BlockSampling, ChainMask, DraftBlock
from draft.proposer.block_kernel import BlockKernel, BlockPass
from draft.proposer.inverse_cdf import inverse_cdf
from draft.proposer.proposer import DSparkProposer, NoDraft, Proposer

__all__ = [
    "BlockKernel",
    "BlockPass",
    "BlockRequest",
    "BlockSampling",
    "ChainMask",
    "ContextKVMode",
    "ContextKVPath",
    "ContextKVWriter",
    "ContextKernel",
    "DSparkConfig",
    "DSparkNetwork",
    "DSparkProposer",
    "DecoderVariant",
    "DraftBlock",
    "DraftLoadError",
    "LayerConfig",
    "LinearFunction",
    "NoDraft",
    "Proposer",
    "TargetFacts",
    "inverse_cdf",
    "load_network",
    "read_config",
    "replace_linears",
    "widening_linear",
]
