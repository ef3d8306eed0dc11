"""The draft: a small network that guesses a block of tokens from the target's hidden states.

It never hears what became of a guess, except as new context.
"""

from draft.block import BlockRequest, BlockSampling, ChainMask, DraftBlock
from draft.checkpoint.loading import load_network
from draft.checkpoint.reading import read_config
from draft.config import DSparkConfig, LayerConfig, TargetFacts
from draft.context.context_kv import ContextKVMode, ContextKVPath, ContextKVWriter
from draft.errors import DraftLoadError
from draft.kernels import BlockKernel, BlockPass, ContextKernel
from draft.network.linear import LinearFunction, replace_linears, widening_linear
from draft.network.network import DSparkNetwork
from draft.proposer import DSparkProposer, NoDraft, Proposer
from draft.sampling import inverse_cdf

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
