"""Settings of the HTTP service and of what it says about itself."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from server.settings.base import (
    AutoOrCount,
    FileName,
    KeyRing,
    OutputFolder,
    Section,
    Text,
    TextList,
)


class ServerSection(Section):
    """The HTTP service."""

    host: Text = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 is every one.")
    port: Annotated[int, Field(ge=1, le=65535)] = Field(8000, description="TCP port.")
    api_key: KeyRing | None = Field(
        None,
        description="Key asked for on every route but /health, as a bearer token or x-api-key; a "
        "list of keys opens with each of them.",
    )
    api_key_file: FileName | None = Field(
        None,
        description="File that holds the keys, one per line, instead of api_key; lines that begin "
        "with # are skipped.",
    )
    admin_api_key: KeyRing | None = Field(
        None,
        description="Key asked for on the routes that steer the server, which api_key then no "
        "longer opens; it opens every other route too.",
    )
    admin_api_key_file: FileName | None = Field(
        None, description="The same for admin keys, instead of admin_api_key."
    )
    cors_origins: TextList = Field(
        (),
        description="Origins whose pages may call the server from a browser, such as "
        "https://chat.example.org; * is every one.",
    )
    ssl_certfile: FileName | None = Field(
        None, description="Certificate (PEM, with its chain); the server then speaks HTTPS."
    )
    ssl_keyfile: FileName | None = Field(
        None, description="Private key of ssl_certfile, unless that file holds it too."
    )
    shutdown_timeout_s: Annotated[float, Field(ge=0)] = Field(
        30.0, description="Seconds that running requests get to finish after SIGTERM."
    )
    exit_on_engine_death: bool = Field(
        True,
        description="End the process with exit code 1 after a fault that the engine does not "
        "survive, so that a supervisor restarts it; false keeps answering with status 503.",
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
    grammar_timeout_s: Annotated[float, Field(gt=0)] = Field(
        3.0,
        description="Seconds that a request's schema, regex or grammar may take to compile, in a "
        "process of its own; one that takes longer is refused.",
    )
    sampling_defaults: Literal["model", "neutral"] = Field(
        "model",
        description="Sampling fields a request leaves out: model takes them from the "
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
    """What the server says about itself."""

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least important kind of line that is logged."
    )
    log_requests: bool = Field(
        True,
        description="Log a line for each request: ids, status, counts and times, never text.",
    )
    otlp_endpoint: Text | None = Field(
        None,
        description="OpenTelemetry collector that is sent a trace of each request, such as "
        "http://collector:4318/v1/traces. Needs the extra [otel].",
    )
    profile_dir: OutputFolder | None = Field(
        None,
        description="Folder for what /start_profile and /stop_profile record; null refuses them.",
    )
    ready_when_collapsed: bool = Field(
        True,
        description="Whether /ready says yes while the draft's acceptance has collapsed, which "
        "costs time but no correctness.",
    )
    stall_seconds: Annotated[float, Field(gt=0)] = Field(
        60.0,
        description="Seconds without progress, with requests at hand, after which /ready says no.",
    )
