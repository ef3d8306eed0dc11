"""Finds a setting by any of its names: dotted path, alias, flag or environment variable.

The dotted path (`kv.page_size`) is the canonical name. Dashes may replace underscores, and capitals
do not matter.
"""

import difflib
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from server.settings.base import Accepts, Section, SettingsError, shown

S = TypeVar("S", bound=Section)

_PLAIN_NAMES = {bool: "true or false", int: "an integer", float: "a number"}
_BOUNDS = ("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below")

# Other names of a setting, in a file and as a flag.
PATH_ALIASES: Mapping[str, str] = {
    "device": "device.type",
    "speculative.lookup": "speculative.lookup.mode",
    "kv.mem_fraction": "kv.memory_fraction",
    "scheduler.chunked_prefill_size": "scheduler.prefill_chunk_tokens",
}

# Flags that users know from other servers.
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
    "scheduler.policy": ("--scheduling-policy",),
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

# Flags without a value: the setting, and the value that they give it.
SWITCHES: Mapping[str, tuple[str, str]] = {
    "--trust-remote-code": ("model.trust_remote_code", "true"),
    "--disable-prefix-cache": ("kv.prefix_cache", "false"),
    "--disable-radix-cache": ("kv.prefix_cache", "false"),
    "--no-enable-prefix-caching": ("kv.prefix_cache", "false"),
    "--enable-priority-scheduling": ("scheduler.policy", "priority"),
    "--schedule-low-priority-values-first": ("scheduler.priority_order", "lower_first"),
}


@dataclass(frozen=True)
class Setting:
    """One setting of a schema, and what it accepts."""

    path: str
    field: FieldInfo

    @property
    def accepted(self) -> str:
        """The accepted values in words: "auto or an integer, at least 1"."""
        return " or ".join(_describe(*part) for part in self._alternatives)

    @property
    def takes_null(self) -> bool:
        return any(kind is type(None) for kind, _ in self._alternatives)

    @property
    def is_list(self) -> bool:
        return any(get_origin(kind) is tuple for kind, _ in self._alternatives)

    @property
    def is_secret(self) -> bool:
        return any(kind is SecretStr for kind, _ in self._items)

    @property
    def path_kind(self) -> Accepts | None:
        """How the value is a path; None if it is none."""
        parts = [*self._alternatives, *self._items]
        notes = [note for _, metadata in parts for note in metadata]
        return next((n for n in notes if isinstance(n, Accepts) and n.path is not None), None)

    @cached_property
    def _alternatives(self) -> list[tuple[Any, list[Any]]]:
        return list(_alternatives(self.field.annotation, self.field.metadata))

    @cached_property
    def _items(self) -> list[tuple[Any, list[Any]]]:
        """The alternatives, with the items of a list in place of the list."""
        items: list[tuple[Any, list[Any]]] = []
        for part in self._alternatives:
            is_list = get_origin(part[0]) is tuple
            items += _alternatives(get_args(part[0])[0]) if is_list else [part]
        return items


class Catalog(Generic[S]):
    """The settings of one schema and their names."""

    def __init__(self, schema: type[S], *, env_prefix: str, reference: str) -> None:
        """env_prefix: of environment variables. reference: the page that lists the settings."""
        self.schema = schema
        self.env_prefix = env_prefix
        self.reference = reference
        self.settings: Mapping[str, Setting] = {
            path: Setting(path, field) for path, field in _fields(schema)
        }
        self.sections = frozenset(
            path[:end] for path in self.settings for end, char in enumerate(path) if char == "."
        )
        self.aliases = {a: path for a, path in PATH_ALIASES.items() if path in self.settings}
        self.switches = {s: to for s, to in SWITCHES.items() if to[0] in self.settings}

    def find(self, name: str, *, origin: str) -> Setting:
        """Find the setting with this name. Raises SettingsError with the nearest valid name."""
        path = normalised(name)
        found = self.settings.get(self.aliases.get(path, path))
        if found is None:
            near = self.nearest(path, [*self.settings, *self.aliases])
            raise SettingsError(f"{origin}: unknown setting {shown(name)}{near}")
        return found

    def find_variable(self, name: str) -> Setting:
        """Find the setting of an environment variable. Raises SettingsError like `find`."""
        try:
            return self.find(name.removeprefix(self.env_prefix).replace("__", "."), origin=name)
        except SettingsError:
            known = [self.env_prefix + path.replace(".", "__").upper() for path in self.settings]
            near = self.nearest(name, known)
            raise SettingsError(f"unknown environment variable {shown(name)}{near}") from None

    def flags(self, path: str) -> list[str]:
        """Spell the flags of a setting, the dotted one first."""
        names = [path, *(alias for alias, target in self.aliases.items() if target == path)]
        flags = [f"--{name}" for name in names]
        flags += [flag.replace("_", "-") for flag in flags]
        return list(dict.fromkeys([*flags, *FLAG_ALIASES.get(path, ())]))

    def other_names(self, path: str) -> list[str]:
        """List the aliases of a setting: flags, switches and keys."""
        names = list(FLAG_ALIASES.get(path, ()))
        names += [switch for switch, (target, _) in self.switches.items() if target == path]
        return names + [alias for alias, target in self.aliases.items() if target == path]

    def nearest(self, name: str, known: Iterable[str]) -> str:
        """Complete a message about an unknown name: "; did you mean X?", or where to look."""
        return did_you_mean(name, known, otherwise=f"see {self.reference} or --help")


def normalised(name: str) -> str:
    """Spell a name as in a dotted path."""
    return name.replace("-", "_").lower()


def did_you_mean(name: str, known: Iterable[str], *, otherwise: str) -> str:
    """Complete a message about an unknown name: "; did you mean X?", or what is accepted."""
    name, known = name[:100], list(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if not near:  # a right name in a wrong section, or the section left out
        tails = {path.rpartition(".")[2]: path for path in known}
        tail = name.rpartition(".")[2]
        near = [tails[t] for t in difflib.get_close_matches(tail, list(tails), n=1, cutoff=0.6)]
    if not near:  # a section alone
        near = [path for path in known if path.startswith(f"{name}.")][:1]
    return f"; did you mean {near[0]}?" if near else f"; accepted: {otherwise}"


def _fields(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _fields(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def _alternatives(annotation: Any, metadata: Iterable[Any] = ()) -> Iterator[tuple[Any, list[Any]]]:
    """Split a union into its types, each with its constraints."""
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        yield from _alternatives(inner, [*more, *metadata])
    elif get_origin(annotation) in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from _alternatives(part, metadata)
    else:
        nested = (i.metadata if isinstance(i, FieldInfo) else [i] for i in metadata)
        yield annotation, [constraint for items in nested for constraint in items]


def _describe(kind: Any, metadata: list[Any]) -> str:
    if get_origin(kind) is Literal:
        return ", ".join(str(value) for value in get_args(kind))
    if kind is type(None):
        return "null"
    texts = [note.text for note in metadata if isinstance(note, Accepts)]
    if texts:
        return texts[-1]
    if get_origin(kind) is tuple:
        items = " or ".join(_describe(*part) for part in _alternatives(get_args(kind)[0]))
        return f"a list, of {items} each"
    bounds = [
        f", {words} {getattr(constraint, name)}"
        for constraint in metadata
        for name, words in _BOUNDS
        if isinstance(constraint, getattr(annotated_types, name.title()))
    ]
    return _PLAIN_NAMES.get(kind, "text") + "".join(bounds)
