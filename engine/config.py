"""Configures an engine. Importing it loads no torch."""

from dataclasses import dataclass
from typing import Literal

from engine.api import ContextKVMode, PriorityOrder, SchedulingPolicy

Device = Literal["auto", "cpu", "cuda"]
DType = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Holds the engine's settings; each field has the meaning of the setting of its name."""

    target: str  # folder or hub id
    target_revision: str | None = None
    dtype: DType = "auto"  # auto: float32 on CPU, bfloat16 on CUDA
    quantization: Literal["none", "int8"] = "none"  # of the target's matrices
    device: Device = "auto"
    trust_remote_code: bool = False
    max_model_len: int | None = None  # tokens; None: the target's own limit
    draft: str | None = None  # folder or hub id; None: no draft model
    draft_revision: str | None = None
    draft_dtype: Literal["auto", "float32", "bfloat16", "int8"] = "auto"  # of its matrices
    allow_other_target: bool = False  # load a draft that names another target
    num_draft_tokens: int | None = None  # verified per round; None: the draft's block size
    # always: num_draft_tokens at any load, and lookups with a long match
    draft_budget: Literal["auto", "always"] = "auto"
    # In the sequence's own text: where it pays; wherever it finds any; never.
    lookup: Literal["auto", "on", "off"] = "off"
    lookup_tokens: int = 7  # proposed by a lookup at most
    lookup_min_match: int = 2  # tokens of a repeated suffix from which a lookup proposes
    # Bytes of other answers in which lookups search too, of the same owner and salt; 0: none.
    lookup_shared_bytes: int = 0
    confidence_threshold: float | None = None  # verify tokens that are likelier; None: all
    # Confidences give out a step's draft rows. auto: with a confidence head, where costs decide.
    confidence_schedule: Literal["auto", "on", "off"] = "off"
    stacked_context_kv: ContextKVMode = "auto"
    page_size: int = 16  # tokens
    num_pages: int | None = None  # exact number, instead of a size in bytes
    memory_gib: float = 1.0  # pool size on CPU
    memory_fraction: float = 0.85  # of the device's memory, weights included, on CUDA
    prefix_cache: bool = True
    attention_backend: Literal["auto", "reference", "triton", "flashinfer"] = "auto"
    # auto: captured at start on CUDA, eager where that fails; on: or refused
    graphs: Literal["auto", "on", "off"] = "auto"
    native_kernels: Literal["auto", "off"] = "auto"  # compiled for this CPU at the first start
    max_running_requests: int = 16
    max_queued_requests: int = 256
    policy: SchedulingPolicy = "fcfs"
    priority_order: PriorityOrder = "higher_first"
    priority_aging_s: float = 10.0  # of waiting, that make up for one step of priority
    prefill_chunk_tokens: int = 512
    num_threads: int | None = None  # torch threads; None: the usable cores
