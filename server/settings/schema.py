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
    Text,
)
from server.settings.names import Catalog
from server.settings.schema_server import ObservabilitySection, ServerSection

__all__ = ["SERVING", "Settings", "SettingsError"]


class ModelSection(Section):
    """The target: the model whose answers are served."""

    path: FolderOrHubId = Field(
        description="Folder or hub id of the target; demo:smollm2-135m-instruct is the demo model. "
        "A folder that begins with ./ or ../ counts from the YAML file that names it, any other "
        "from the working directory."
    )
    revision: Text | None = Field(None, description="Branch, tag or commit of a hub id.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Number format of both models; auto is float32 on CPU, bfloat16 on CUDA.",
    )
    quantization: Literal["none", "int8"] = Field(
        "none",
        description="int8: the target's matrices are held in int8 with a scale for each row; on "
        "CPU, for Llama, Mistral, Qwen2 and Qwen3. The text is then the int8 target's own, with a "
        "draft or without.",
    )
    max_model_len: Literal["auto"] | Annotated[int, Field(ge=2)] = Field(
        "auto",
        description="Longest sequence in tokens, prompt and output together; auto is the "
        "target's own limit.",
    )
    served_name: Text | None = Field(
        None, description="Name in /v1/models; null is the hub id, or the name of the folder."
    )
    chat_template: FileName | None = Field(
        None, description="File with a Jinja chat template, instead of the target's own."
    )
    tool_call_parser: Literal["auto", "none", "hermes", "llama3_json", "mistral", "pythonic"] = (
        Field(
            "auto",
            description="Format in which the target calls tools; auto is the one that its chat "
            "template shows, if any; none refuses tools.",
        )
    )
    reasoning_parser: Literal["none", "think"] = Field(
        "none",
        description="think: text between <think> tags at the beginning of a chat's answer is "
        "returned as reasoning_content.",
    )
    trust_remote_code: bool = Field(
        False, description="Run Python code that comes with the target. Only for code you trust."
    )


class ConfidenceSection(Section):
    """How the draft's confidence decides what is verified."""

    mode: Literal["off", "threshold"] = Field(
        "off",
        description="off: every draft token is verified; threshold: a block is cut where it is no "
        "longer likely enough to stand.",
    )
    threshold: Annotated[float, Field(gt=0, le=1)] = Field(
        0.06,
        description="A draft token is verified if the chance that the block stands up to it is at "
        "least this, by the draft's own confidences. About the cost of one more row in the "
        "target, as a share of a round.",
    )


class SpeculativeSection(Section):
    """The draft model, and what is done with its guesses."""

    algorithm: Literal["dspark", "none"] = Field(
        "dspark", description="dspark: a DSpark draft guesses ahead; none: plain decoding."
    )
    draft_model: FolderOrHubId | None = Field(
        None,
        description="Folder or hub id of the draft checkpoint; a folder counts as in model.path, "
        "and demo:smollm2-135m-instruct is the draft of the demo model.",
    )
    draft_revision: Text | None = Field(
        None, description="Branch, tag or commit of a draft's hub id."
    )
    draft_dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="Number format in which the draft's matrices are held; auto is model.dtype, "
        "but bfloat16 beside a float32 target on CPU where native kernels run and the checkpoint's "
        "own lose nothing by it (the head's copy is rounded). Native kernels sum in float32 "
        "whatever it is.",
    )
    allow_other_target: bool = Field(
        False,
        description="Take a draft that was trained for other weights than this target's, which is "
        "refused otherwise. The text stays the target's; acceptance may be low.",
    )
    num_draft_tokens: AutoOrCount = Field(
        "auto",
        description="Draft tokens verified in a round at most, anchor and bonus not counted; auto "
        "is the draft's block size.",
    )
    draft_budget: Literal["auto", "always"] = Field(
        "auto",
        description="auto: as many draft tokens as pay at the load of each step, by costs measured "
        "at start and by how many stood before; none if none pay. Requests with a seed and a "
        "temperature above 0 always have num_draft_tokens. always: num_draft_tokens at any load.",
    )
    stacked_context_kv: Literal["auto", "on", "off"] = Field(
        "auto",
        description="Write the draft's context KV for all layers at once; auto falls back "
        "to layer by layer where that cannot hold, on refuses to start there.",
    )
    confidence: ConfidenceSection = Field(default_factory=lambda: ConfidenceSection())

    @field_validator("algorithm", mode="before")
    @classmethod
    def _any_case(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @model_validator(mode="after")
    def _a_draft_has_a_model(self) -> "SpeculativeSection":
        if self.algorithm != "none" and self.draft_model is None:
            raise ValueError(
                "speculative.draft_model is missing; accepted: a folder or hub id of a draft, or "
                "speculative.algorithm none for plain decoding"
            )
        return self


class KVSection(Section):
    """The paged pool of keys and values, of target and draft together."""

    page_size: Annotated[int, Field(ge=1, le=1024)] = Field(16, description="Tokens in one page.")
    num_pages: AutoOrCount = Field(
        "auto",
        description="Pages in the pool, exactly; auto sizes it from memory_gib on CPU and "
        "memory_fraction on CUDA.",
    )
    memory_gib: Annotated[float, Field(gt=0)] = Field(
        1.0, description="Size of the pool on CPU, in GiB."
    )
    memory_fraction: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.85,
        description="Share of the device's memory that weights, steps and pool may take "
        "together on CUDA.",
    )
    prefix_cache: bool = Field(
        True, description="Share pages between requests that begin with the same tokens."
    )


class SchedulerSection(Section):
    """Which requests run, and how much of them in a step."""

    max_running_requests: Annotated[int, Field(ge=1)] = Field(
        16, description="Sequences that may run at once."
    )
    max_queued_requests: Annotated[int, Field(ge=0)] = Field(
        256, description="Requests that may wait; one more is answered with 429."
    )
    queue_timeout_s: Seconds | None = Field(
        None,
        description="Seconds that a request may wait before it begins; then it is answered with "
        "504. Null is no limit.",
    )
    request_timeout_s: Seconds | None = Field(
        None,
        description="Seconds that an answer may take, waiting included, counted once its prompt is "
        "tokenized and its grammar compiled; then it is cancelled with 504. Null is no limit.",
    )
    prefill_chunk_tokens: Annotated[int, Field(ge=1)] = Field(
        512, description="Most prompt tokens that go through the target in one step."
    )


class AttentionSection(Section):
    """Attention over paged keys and values."""

    backend: Literal["auto", "reference", "triton", "flashinfer"] = Field(
        "auto",
        description="auto is the best one for the device: on CUDA flashinfer if it is installed, "
        "else triton; reference runs anywhere.",
    )


class DeviceSection(Section):
    """Where the models run. `device: cpu` is short for `device: {type: cpu}`."""

    type: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="auto is cuda where there is one."
    )
    num_threads: AutoOrThreads = Field(
        "auto",
        description="Threads for arithmetic on CPU; auto is OMP_NUM_THREADS if set, else the cores "
        "really available.",
    )
    native_kernels: Literal["auto", "off"] = Field(
        "auto",
        description="auto compiles kernels for this CPU at the first start and uses them where "
        "they agree with PyTorch (float32 and bfloat16); off leaves everything to PyTorch.",
    )
    graphs: Literal["auto", "off"] = Field(
        "auto",
        description="auto records decode rounds as CUDA graphs at start, for batches of 1, 2, 4 "
        "and so on to max_running_requests; off launches every kernel anew.",
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


SERVING = Catalog(Settings, env_prefix="DSPARK__", reference="docs/settings.md")
