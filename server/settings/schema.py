"""Defines every setting of the server with its unit and meaning.

File, environment, flags, `--help` and docs/settings.md follow from it.
"""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from server.settings.base import (
    AutoOrCount,
    AutoOrThreads,
    FileName,
    FolderOrHubId,
    Seconds,
    Section,
    SettingsError,
    TargetName,
    Text,
)
from server.settings.names import Catalog
from server.settings.schema_deploy import DeploySection
from server.settings.schema_server import ObservabilitySection, ServerSection

__all__ = ["SERVING", "Settings", "SettingsError"]


class TargetSection(Section):
    """The target model."""

    path: TargetName = Field(
        description="Folder, GGUF file or hub id of the target; demo:smollm2-135m-instruct is the "
        "demo model. A path that begins with ./ or ../ counts from the YAML file that names it, "
        "any other from the working directory. A GGUF file is converted once, into the cache."
    )
    revision: Text | None = Field(None, description="Branch, tag or commit of a hub id.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="Number format; auto is float32 on CPU, bfloat16 on CUDA."
    )
    chat_template: FileName | None = Field(
        None, description="File with a Jinja chat template that replaces the target's own."
    )
    trust_remote_code: bool = Field(
        False, description="Run Python code that comes with the target. Only for code you trust."
    )


class ModelSection(TargetSection):
    """The target: the model that is served."""

    quantization: Literal["none", "int8"] = Field(
        "none",
        description="int8: the target's matrices are int8 with a scale for each row; on CPU, for "
        "the families that docs/models.md lists. The text is then that of the int8 target, with "
        "or without a draft.",
    )
    max_model_len: Literal["auto"] | Annotated[int, Field(ge=2)] = Field(
        "auto",
        description="Longest sequence in tokens, prompt and output together; auto is the target's "
        "limit.",
    )
    served_name: Text | None = Field(
        None, description="Name in /v1/models; null is the hub id, or the name of the folder."
    )
    tool_call_parser: Literal["auto", "none", "hermes", "llama3_json", "mistral", "pythonic"] = (
        Field(
            "auto",
            description="Format of the target's tool calls; auto detects it from the chat "
            "template; none refuses tools.",
        )
    )
    reasoning_parser: Literal["none", "think"] = Field(
        "none",
        description="think: text between <think> tags at the start of a chat completion is "
        "returned as reasoning_content.",
    )


class ConfidenceSection(Section):
    """How the draft's confidence limits verification."""

    mode: Literal["auto", "schedule", "threshold", "off"] = Field(
        "off",
        description="schedule: a step verifies the likeliest tokens of all blocks, as many as pay "
        "in total by costs and earlier rounds; threshold: a block is cut before the first token "
        "that is too unlikely to be accepted; off: confidences are not used. auto is schedule, or "
        "off for a draft without a confidence head and with draft_budget always. Requests with a "
        "seed and a temperature above 0 are never cut by a schedule.",
    )
    threshold: Annotated[float, Field(gt=0, le=1)] = Field(
        0.06,
        description="A draft token is verified if the probability that the block is accepted up "
        "to it is at least this, by the draft's confidences. A good value is the cost of one more "
        "row in the target as a fraction of a round.",
    )


class LookupSection(Section):
    """Proposals from a request's own prompt and answer: what followed the same text before."""

    mode: Literal["auto", "on", "off"] = Field(
        "auto",
        description="auto: a round verifies a lookup where that pays best, by costs, the length of "
        "the match and earlier acceptance; on: wherever there is a match; off: never. "
        "`lookup: on` is short for `lookup: {mode: on}`.",
    )
    max_tokens: Annotated[int, Field(ge=1, le=64)] = Field(
        7, description="Most tokens that a lookup proposes."
    )
    min_match: Annotated[int, Field(ge=1, le=64)] = Field(
        2, description="Tokens at the end of the text that must have occurred before."
    )
    shared: Literal["on", "off"] = Field(
        "off",
        description="on: lookups also search recent answers to other requests with the same API "
        "key and cache_salt. How fast an answer comes then depends on these answers. POST "
        "/flush_cache drops them.",
    )
    shared_mib: Annotated[int, Field(ge=1, le=65536)] = Field(
        64, description="Most memory of shared answers, in MiB; 2,300 tokens take one."
    )


class SpeculativeSection(Section):
    """The draft model and the use of its draft tokens."""

    algorithm: Literal["dspark", "lookup", "none"] = Field(
        "dspark",
        description="dspark: a DSpark draft proposes tokens, and so do lookups; lookup: lookups "
        "alone, without a draft model; none: plain decoding.",
    )
    draft_model: FolderOrHubId | None = Field(
        None,
        description="Folder or hub id of the draft checkpoint; a folder counts as in model.path, "
        "and demo:smollm2-135m-instruct is the draft of the demo model.",
    )
    draft_revision: Text | None = Field(
        None, description="Branch, tag or commit of a draft's hub id."
    )
    draft_dtype: Literal["auto", "float32", "bfloat16", "int8"] = Field(
        "auto",
        description="Number format of the draft's matrices; auto is model.dtype. On CPU, with "
        "native kernels, auto is int8 for an int8 target, and for a float32 target bfloat16 if the "
        "checkpoint's matrices lose nothing by it (the copy of the head is rounded). int8 is "
        "rounded as in model.quantization; it can cost acceptance and changes no text. Native "
        "kernels always sum in float32.",
    )
    allow_other_target: bool = Field(
        False,
        description="Accept a draft that was trained for other weights than this target's. The "
        "text stays the target's; acceptance may be low.",
    )
    num_draft_tokens: AutoOrCount = Field(
        "auto",
        description="Most draft tokens verified in a round, without anchor and bonus token; auto "
        "is the draft's block size.",
    )
    draft_budget: Literal["auto", "always"] = Field(
        "auto",
        description="auto: each request gets the drafts that pay at the load of each step, "
        "possibly none, by costs measured at start and by earlier acceptance. Requests with a seed "
        "and a temperature above 0 always have a lookup with a long match, or else "
        "num_draft_tokens. always: all rounds verify num_draft_tokens, at any load, and lookups "
        "only with lookup.mode on.",
    )
    stacked_context_kv: Literal["auto", "on", "off"] = Field(
        "auto",
        description="Write the draft's context KV for all layers at once. Where a draft does not "
        "allow it, auto writes layer by layer and on refuses to start.",
    )
    lookup: LookupSection = Field(default_factory=lambda: LookupSection())
    confidence: ConfidenceSection = Field(default_factory=lambda: ConfidenceSection())

    @field_validator("algorithm", mode="before")
    @classmethod
    def _any_case(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @model_validator(mode="after")
    def _a_draft_has_a_model(self) -> "SpeculativeSection":
        if self.algorithm == "dspark" and self.draft_model is None:
            raise ValueError(
                "speculative.draft_model is missing; accepted: a folder or hub id of a draft, or "
                "speculative.algorithm none for plain decoding, or lookup for lookups alone"
            )
        if self.confidence.mode == "schedule" and self.draft_budget == "always":
            raise ValueError(
                "speculative.confidence.mode: found schedule with speculative.draft_budget always; "
                "accepted: auto, threshold, off"
            )
        if self.algorithm == "lookup" and self.lookup.mode == "off":
            raise ValueError(
                "speculative.lookup.mode: found off with speculative.algorithm lookup; accepted: "
                "auto, on"
            )
        return self


class KVSection(Section):
    """The paged pool of keys and values for target and draft."""

    page_size: Annotated[int, Field(ge=1, le=1024)] = Field(16, description="Tokens in one page.")
    num_pages: AutoOrCount = Field(
        "auto",
        description="Exact number of pages in the pool; auto derives it from memory_gib on CPU "
        "and memory_fraction on CUDA.",
    )
    memory_gib: Annotated[float, Field(gt=0)] = Field(
        1.0, description="Size of the pool on CPU, in GiB."
    )
    memory_fraction: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.85,
        description="Fraction of the device's memory for weights, steps and pool together on CUDA.",
    )
    prefix_cache: bool = Field(
        True, description="Share pages between requests that begin with the same tokens."
    )


class SchedulerSection(Section):
    """Limits on requests and on the prompt tokens of a step."""

    max_running_requests: Annotated[int, Field(ge=1)] = Field(
        16, description="Most sequences that run at once."
    )
    max_queued_requests: Annotated[int, Field(ge=0)] = Field(
        256, description="Most requests that wait; further ones get status 429."
    )
    policy: Literal["fcfs", "priority"] = Field(
        "fcfs",
        description="fcfs: requests start by arrival, and `priority` of a request has no effect; "
        "priority: by their priority. When pages run out, the last in this order is preempted.",
    )
    priority_order: Literal["higher_first", "lower_first"] = Field(
        "higher_first",
        description="Which priorities come first: higher ones as in SGLang, or lower ones as in "
        "vLLM.",
    )
    priority_aging_s: Annotated[float, Field(gt=0)] = Field(
        10.0,
        description="Seconds of earlier arrival that make up for one step of priority, so that no "
        "request waits for ever.",
    )
    queue_timeout_s: Seconds | None = Field(
        None,
        description="Most seconds that a request waits before it starts; then it gets status 504. "
        "Null is no limit.",
    )
    request_timeout_s: Seconds | None = Field(
        None,
        description="Most seconds that a request takes, waiting included, from when its prompt is "
        "tokenized and its grammar compiled; then it is cancelled with status 504. Null is no "
        "limit.",
    )
    prefill_chunk_tokens: Annotated[int, Field(ge=1)] = Field(
        512, description="Most prompt tokens in one step."
    )


class AttentionSection(Section):
    """Attention over paged keys and values."""

    backend: Literal["auto", "reference", "triton", "flashinfer"] = Field(
        "auto",
        description="auto is the fastest for the device: on CUDA flashinfer if it is installed, "
        "else triton; reference runs on every device.",
    )


class HostSection(Section):
    """The device and the threads of computation."""

    type: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="auto is cuda if there is a device, else cpu."
    )
    num_threads: AutoOrThreads = Field(
        "auto",
        description="Threads for arithmetic on CPU; auto is OMP_NUM_THREADS if set, else the "
        "cores that this process may use.",
    )


class DeviceSection(HostSection):
    """Where the models run. `device: cpu` is short for `device: {type: cpu}`."""

    native_kernels: Literal["auto", "off"] = Field(
        "auto",
        description="auto compiles kernels for this CPU at the first start and uses them if they "
        "agree with PyTorch (float32 and bfloat16); off uses PyTorch alone. On a GPU it is about "
        "Triton kernels of the target's layers.",
    )
    graphs: Literal["auto", "on", "off"] = Field(
        "auto",
        description="auto records decode rounds as CUDA graphs at start, for batches of 1, 2, 4, "
        "8 and more up to max_running_requests; on refuses to start without them; off launches "
        "every kernel by itself.",
    )


class Settings(Section):
    """All settings of the server."""

    model: ModelSection
    speculative: SpeculativeSection = Field(default_factory=lambda: SpeculativeSection())
    kv: KVSection = Field(default_factory=lambda: KVSection())
    scheduler: SchedulerSection = Field(default_factory=lambda: SchedulerSection())
    server: ServerSection = Field(default_factory=lambda: ServerSection())
    attention: AttentionSection = Field(default_factory=lambda: AttentionSection())
    observability: ObservabilitySection = Field(default_factory=lambda: ObservabilitySection())
    device: DeviceSection = Field(default_factory=lambda: DeviceSection())
    deploy: DeploySection = Field(default_factory=lambda: DeploySection())


SERVING = Catalog(Settings, env_prefix="DSPARK__", reference="docs/settings.md")
