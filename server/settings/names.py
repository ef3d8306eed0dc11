"""The name of every setting, what it is called elsewhere, and the nearest to a misspelt one.

A setting's name is its dotted path (`kv.page_size`). Dashes stand for underscores anywhere.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from server.settings.schema import Settings, SettingsError

ENV_PREFIX = "DSPARK__"

# Other names for a setting, in a file and as a flag.
PATH_ALIASES: Mapping[str, str] = {
    "device": "device.type",
    "kv.mem_fraction": "kv.memory_fraction",
    "scheduler.chunked_prefill_size": "scheduler.prefill_chunk_tokens",
}

# Flags that users know from elsewhere.
FLAG_ALIASES: Mapping[str, tuple[str, ...]] = {
    "model.path": ("--model", "--model-path"),
    "model.revision": ("--revision",),
    "model.dtype": ("--dtype",),
    "model.quantization": ("--quantization",),
    "model.max_model_len": ("--max-model-len", "--context-length"),
    "model.served_name": ("--served-model-name",),
    "model.chat_template": ("--chat-template",),
    "model.tool_call_parser": ("--tool-call-parser",),
    "model.reasoning_parser": ("--reasoning-parser",),
    "speculative.algorithm": ("--speculative-algorithm",),
    "speculative.draft_model": ("--draft-model", "--speculative-draft-model-path"),
    "speculative.num_draft_tokens": ("--num-speculative-tokens",),
    "speculative.stacked_context_kv": ("--stacked-context-kv",),
    "speculative.confidence.mode": ("--confidence-mode",),
    "speculative.confidence.threshold": ("--confidence-threshold",),
    "kv.page_size": ("--page-size",),
    "kv.memory_fraction": (
        "--mem-fraction",
        "--mem-fraction-static",
        "--gpu-memory-utilization",
    ),
    "scheduler.max_running_requests": ("--max-running-requests", "--max-num-seqs"),
    "scheduler.max_queued_requests": ("--max-queued-requests",),
    "scheduler.prefill_chunk_tokens": ("--chunked-prefill-size",),
    "server.host": ("--host",),
    "server.port": ("--port",),
    "server.api_key": ("--api-key",),
    "server.api_key_file": ("--api-key-file",),
    "server.admin_api_key": ("--admin-api-key",),
    "server.admin_api_key_file": ("--admin-api-key-file",),
    "server.cors_origins": ("--cors-origins", "--allowed-origins"),
    "server.ssl_certfile": ("--ssl-certfile",),
    "server.ssl_keyfile": ("--ssl-keyfile",),
    "server.sampling_defaults": ("--sampling-defaults",),
    "attention.backend": ("--attention-backend",),
    "observability.log_level": ("--log-level",),
    "device.type": ("--device",),
}


@dataclass(frozen=True, slots=True)
class Switch:
    """A flag without a value, and what it says."""

    flag: str
    path: str
    value: bool


SWITCHES: tuple[Switch, ...] = (
    Switch("--trust-remote-code", "model.trust_remote_code", True),
    Switch("--disable-prefix-cache", "kv.prefix_cache", False),
    Switch("--disable-radix-cache", "kv.prefix_cache", False),
    Switch("--no-enable-prefix-caching", "kv.prefix_cache", False),
)


def all_fields(
    model: type[BaseModel] = Settings, prefix: str = ""
) -> Iterator[tuple[str, FieldInfo]]:
    """Every setting that holds a value, as (dotted path, field), in the schema's order."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from all_fields(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


FIELDS: Mapping[str, FieldInfo] = dict(all_fields())
SECTIONS = frozenset(path[:end] for path in FIELDS for end, char in enumerate(path) if char == ".")


def canonical_path(name: str, *, origin: str) -> str:
    """The dotted path that `name` means. Raises SettingsError naming the nearest otherwise."""
    path = name.replace("-", "_").lower()
    path = PATH_ALIASES.get(path, path)
    if path in FIELDS:
        return path
    raise SettingsError(
        f"{origin}: unknown setting {name}{did_you_mean(name, [*FIELDS, *PATH_ALIASES])}"
    )


def did_you_mean(
    name: str, known: Iterable[str], *, otherwise: str = "see docs/settings.md or --help"
) -> str:
    """ "; did you mean X?", or what is accepted when nothing is near."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if not near:  # a right name in a wrong section, or the section left out
        tails = {path.rpartition(".")[2]: path for path in known}
        tail = name.rpartition(".")[2]
        near = [tails[t] for t in difflib.get_close_matches(tail, list(tails), n=1, cutoff=0.6)]
    if not near:  # a section alone
        near = [path for path in known if path.startswith(f"{name}.")][:1]
    return f"; did you mean {near[0]}?" if near else f"; accepted: {otherwise}"
