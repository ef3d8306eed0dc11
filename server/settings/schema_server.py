"""Defines the settings of the HTTP service and of its logs, traces and health checks."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from server.settings.base import (
    AutoOrCount,
    FileName,
    KeyRing,
    OutputFolder,
    Section,
    Text,
)
from server.settings.origins import Origins


class ServerSection(Section):
    """The HTTP service."""

    host: Text = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 is all addresses.")
    port: Annotated[int, Field(ge=1, le=65535)] = Field(8000, description="TCP port.")
    api_key: KeyRing | None = Field(
        None,
        description="Key required on every route but /health and the playground's files, as a "
        "bearer token or x-api-key; of a list of keys each one is valid.",
    )
    api_key_file: FileName | None = Field(
        None,
        description="File with the keys, one per line, in place of api_key; lines that begin with "
        "# are skipped.",
    )
    admin_api_key: KeyRing | None = Field(
        None,
        description="Key required on administrative routes, where api_key is then no longer "
        "valid; it is valid on every other route too.",
    )
    admin_api_key_file: FileName | None = Field(
        None, description="File with admin keys, in place of admin_api_key."
    )
    cors_origins: Origins = Field(
        (),
        description="Origins whose pages may call the server from a browser, such as "
        "https://chat.example.org; * is all origins.",
    )
    ssl_certfile: FileName | None = Field(
        None, description="Certificate (PEM, with its chain) for HTTPS."
    )
    ssl_keyfile: FileName | None = Field(
        None, description="Private key of ssl_certfile, unless that file contains it."
    )
    shutdown_timeout_s: Annotated[float, Field(ge=0)] = Field(
        30.0, description="Seconds for running requests to finish after SIGTERM."
    )
    exit_on_engine_death: bool = Field(
        True,
        description="End the process with exit code 1 after a fault that the engine does not "
        "survive, so that a supervisor restarts it; false keeps answering with status 503.",
    )
    keepalive_s: Annotated[float, Field(gt=0)] = Field(
        15.0, description="Seconds without output on a stream before a comment line is sent."
    )
    max_body_bytes: Annotated[int, Field(ge=1)] = Field(
        8 << 20, description="Largest request body, in bytes."
    )
    header_timeout_s: Annotated[float, Field(gt=0)] = Field(
        15.0,
        description="Most seconds for a TLS handshake, and for the head of a request; a longer "
        "one ends the connection.",
    )
    body_timeout_s: Annotated[float, Field(gt=0)] = Field(
        60.0,
        description="Most seconds for the body of a request to arrive; a longer one gets status "
        "408.",
    )
    default_max_tokens: Literal["auto", "fit"] | Annotated[int, Field(ge=1)] = Field(
        "auto",
        description="Most output tokens of a request without a limit; auto is 16 on "
        "/v1/completions, 128 on /generate and the rest of the context elsewhere; fit is the rest "
        "of the context everywhere.",
    )
    max_tokens_cap: AutoOrCount = Field(
        "auto", description="Highest limit of a request; auto is the rest of the context."
    )
    responses_store: Annotated[int, Field(ge=0)] = Field(
        1000,
        description="Responses of /v1/responses that are kept in memory for each API key, the "
        "latest ones in at most 64 MiB; 0 keeps none.",
    )
    grammar_timeout_s: Annotated[float, Field(gt=0)] = Field(
        3.0,
        description="Most seconds for compiling a request's schema, regex or grammar, in a "
        "separate process; a longer compilation is refused.",
    )
    additional_properties: bool = Field(
        False,
        description="Whether an object of a request's schema that names properties, and does not "
        "set additionalProperties, allows others; a request's `additional_properties` wins.",
    )
    playground: bool = Field(
        True,
        description="Serve the playground at /, a page in the browser that chats, shows where each "
        "token came from and compares two ways of decoding. Its files need no key, its calls do.",
    )
    special_tokens_in_content: bool = Field(
        False,
        description="Encode special tokens that a chat's content contains as such, such as "
        "<|im_end|> in a user's message; false encodes them as plain text.",
    )
    sampling_defaults: Literal["model", "neutral"] = Field(
        "model",
        description="Values of sampling fields that a request omits: model takes them from the "
        "target's generation_config.json, neutral is temperature 1 and no filter.",
    )

    @model_validator(mode="after")
    def _one_source_of_keys(self) -> "ServerSection":
        for name in ("api_key", "admin_api_key"):
            if None not in (getattr(self, name), getattr(self, f"{name}_file")):
                raise ValueError(
                    f"server.{name} and server.{name}_file are both given; accepted: one of them"
                )
        return self

    @model_validator(mode="after")
    def _a_key_has_a_certificate(self) -> "ServerSection":
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise ValueError(
                "server.ssl_keyfile is given without server.ssl_certfile; accepted: both of them"
            )
        return self


class ObservabilitySection(Section):
    """Logs, traces, profiles and health checks."""

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lowest level of logged lines."
    )
    log_requests: bool = Field(
        True,
        description="Log one line for each request: ids, status, counts and times, without text.",
    )
    metric_aliases: bool = Field(
        False,
        description="Also export the counters of speculation under vLLM's own names "
        "(vllm:spec_decode_*), which its benchmark reads.",
    )
    otlp_endpoint: Text | None = Field(
        None,
        description="OpenTelemetry collector for a trace of each request, such as "
        "http://collector:4318/v1/traces. Needs the extra [otel].",
    )
    profile_dir: OutputFolder | None = Field(
        None,
        description="Folder for the traces of /start_profile and /stop_profile; null refuses them.",
    )
    ready_when_collapsed: bool = Field(
        True,
        description="Whether /ready succeeds while the draft's acceptance has collapsed. The "
        "output stays correct, but slow.",
    )
    stall_seconds: Annotated[float, Field(gt=0)] = Field(
        60.0,
        description="Seconds without progress on waiting or running requests after which /ready "
        "fails.",
    )
