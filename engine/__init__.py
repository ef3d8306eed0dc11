"""Token ids in, token ids out. This face is light: importing it loads no torch.

The other door is `engine.build`, which loads models; only the command line uses it.
"""

from engine.api import (
    GREEDY_BELOW,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_TOP_LOGPROBS,
    SOURCES,
    ContextKVMode,
    ContextKVStatus,
    EngineClient,
    EngineInfo,
    EngineSamplingParams,
    EngineSnapshot,
    Finish,
    FinishReason,
    Request,
    Round,
    SourceStats,
    SpeculationStats,
    StopScanner,
    TokenEvent,
    TokenLogprob,
    TokenMask,
)
from engine.config import EngineConfig
from engine.errors import (
    EngineBusy,
    EngineDead,
    EngineDraining,
    EngineError,
    LoadError,
    RequestFailed,
    RequestRejected,
)

__all__ = [
    "GREEDY_BELOW",
    "MAX_LOGPROB_TOKEN_IDS",
    "MAX_TOP_LOGPROBS",
    "SOURCES",
    "ContextKVMode",
    "ContextKVStatus",
    "EngineBusy",
    "EngineClient",
    "EngineConfig",
    "EngineDead",
    "EngineDraining",
    "EngineError",
    "EngineInfo",
    "EngineSamplingParams",
    "EngineSnapshot",
    "Finish",
    "FinishReason",
    "LoadError",
    "Request",
    "RequestFailed",
    "RequestRejected",
    "Round",
    "SourceStats",
    "SpeculationStats",
    "StopScanner",
    "TokenEvent",
    "TokenLogprob",
    "TokenMask",
]
