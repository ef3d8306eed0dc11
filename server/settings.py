"""Every setting, with its unit and meaning. One schema for file, environment, flags and --help.

`server.settings_loading.load_settings` fills it; unknown names are refused there and here.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)


class SettingsError(Exception):
    """A setting, flag or config file cannot be used; one line, fit for a user's eyes."""


@dataclass(frozen=True, slots=True)
class Wording:
    """In an annotation: what is accepted, in words that say more than the type."""

    text: str


Text = Annotated[str, Field(min_length=1)]
FolderOrHubId = Annotated[str, Field(min_length=1), Wording("a folder or hub id")]
FileName = Annotated[str, Field(min_length=1), Wording("a file")]
AutoOrCount = Literal["auto"] | Annotated[int, Field(ge=1)]
AutoOrThreads = Literal["auto"] | Annotated[int, Field(ge=1, le=1024)]


class Section(BaseModel):
    """Settings under one name; frozen, and nothing but what is declared."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _booleans_mean_what_was_written(cls, value: object, info: ValidationInfo) -> object:
        """YAML reads `on` and `off` as booleans, and pydantic reads booleans as 1 and 0."""
        if not isinstance(value, bool) or info.field_name is None:
            return value
        annotation = cls.model_fields[info.field_name].annotation
        if annotation is bool:
            return value
        word = "on" if value else "off"
        if word in get_args(annotation):
            return word
        raise ValueError("true and false are not accepted here")


class ModelSection(Section):
    """The target: the model whose answers are served."""

    path: FolderOrHubId = Field(
        description="Folder or hub id of the target; demo:smollm2-135m-instruct is the demo model."
    )
    revision: Text | None = Field(None, description="Branch, tag or commit of a hub id.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Number format of both models; auto is float32 on CPU, bfloat16 on CUDA.",
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
    trust_remote_code: bool = Field(
        False, description="Run Python code that comes with the target. Only for code you trust."
    )


class ConfidenceSection(Section):
    """How the draft's confidence decides what is verified."""

    mode: Literal["off"] = Field("off", description="off: every draft token is verified.")


class SpeculativeSection(Section):
    """The draft model, and what is done with its guesses."""

    algorithm: Literal["dspark", "none"] = Field(
        "dspark", description="dspark: a DSpark draft guesses ahead; none: plain decoding."
    )
    draft_model: FolderOrHubId | None = Field(
        None, description="Folder or hub id of the draft checkpoint."
    )
    draft_revision: Text | None = Field(
        None, description="Branch, tag or commit of a draft's hub id."
    )
    allow_other_target: bool = Field(
        False,
        description="Take a draft that was trained for other weights than this target's, which is "
        "refused otherwise. The text stays the target's; acceptance may not.",
    )
    num_draft_tokens: AutoOrCount = Field(
        "auto",
        description="Draft tokens verified in a round, anchor and bonus not counted; auto "
        "is the draft's block size.",
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
    prefill_chunk_tokens: Annotated[int, Field(ge=1)] = Field(
        512, description="Most prompt tokens that go through the target in one step."
    )


class ServerSection(Section):
    """The HTTP service."""

    host: Text = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 is every one.")
    port: Annotated[int, Field(ge=1, le=65535)] = Field(8000, description="TCP port.")
    api_key: Annotated[SecretStr, Field(min_length=1)] | None = Field(
        None, description="Key asked for on every route but /health, as a bearer token."
    )
    api_key_file: FileName | None = Field(
        None, description="File that holds the key, instead of api_key."
    )
    shutdown_timeout_s: Annotated[float, Field(ge=0)] = Field(
        30.0, description="Seconds that running requests get to finish after SIGTERM."
    )
    keepalive_s: Annotated[float, Field(gt=0)] = Field(
        15.0, description="Seconds of silence on a stream before a comment line keeps it open."
    )
    max_body_bytes: Annotated[int, Field(ge=1)] = Field(
        8 << 20, description="Largest request body, in bytes."
    )
    default_max_tokens: AutoOrCount = Field(
        "auto",
        description="Output tokens of a request that names no limit; auto is what still "
        "fits the context.",
    )
    max_tokens_cap: AutoOrCount = Field(
        "auto", description="Most output tokens that a request may ask for; auto is what fits."
    )
    sampling_defaults: Literal["model", "neutral"] = Field(
        "model",
        description="Sampling fields a request leaves out: model takes them from the "
        "target's generation_config.json, neutral is temperature 1 and no filter.",
    )

    @model_validator(mode="after")
    def _one_key(self) -> "ServerSection":
        if self.api_key is not None and self.api_key_file is not None:
            raise ValueError(
                "server.api_key and server.api_key_file are both given; accepted: one of them"
            )
        return self


class AttentionSection(Section):
    """Attention over paged keys and values."""

    backend: Literal["auto", "reference"] = Field(
        "auto", description="auto is the best one for the device; reference runs anywhere."
    )


class ObservabilitySection(Section):
    """What the server says about itself."""

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least important kind of line that is logged."
    )
    stall_seconds: Annotated[float, Field(gt=0)] = Field(
        60.0,
        description="Seconds without progress, with requests at hand, after which /ready says no.",
    )


class DeviceSection(Section):
    """Where the models run. `device: cpu` is short for `device: {type: cpu}`."""

    type: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="auto is cuda where there is one."
    )
    num_threads: AutoOrThreads = Field(
        "auto", description="Threads for arithmetic on CPU; auto is the cores really available."
    )
    native_kernels: Literal["auto", "off"] = Field(
        "auto",
        description="auto compiles kernels for this CPU at the first start and uses them where "
        "they agree with PyTorch (float32 only); off leaves everything to PyTorch.",
    )


class Settings(Section):
    """All of it."""

    model: ModelSection
    speculative: SpeculativeSection = Field(default_factory=lambda: SpeculativeSection())
    kv: KVSection = Field(default_factory=lambda: KVSection())
    scheduler: SchedulerSection = Field(default_factory=lambda: SchedulerSection())
    server: ServerSection = Field(default_factory=lambda: ServerSection())
    attention: AttentionSection = Field(default_factory=lambda: AttentionSection())
    observability: ObservabilitySection = Field(default_factory=lambda: ObservabilitySection())
    device: DeviceSection = Field(default_factory=lambda: DeviceSection())
