"""Reads the servers of a comparison, and how to start them, from a YAML file.

llama.cpp:
  about: llama.cpp 0.7.0, weights, keys and values in float32
  start: $PEERS/llama-server -m $PEERS/model.gguf --port 8732
  url: http://127.0.0.1:8732
  peer: true
  body: {cache_prompt: false}
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dspark.bench.http.backends import BACKENDS
from dspark.bench.http.server import Address
from server.settings.schema import SettingsError

_URL = r"^http://[^/]+:\d+$"


class ServerSpec(BaseModel):
    """One server: how to start it and what to send."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    about: str = Field(description="What it is: version, precision, what is switched on.")
    start: str = Field(description="Command line; $NAMES are those of the environment.")
    url: str = Field(pattern=_URL, description="Where it serves when it runs.")
    peer: bool = Field(False, description="Another project's server, to compare ours with.")
    backend: Literal["openai-chat", "openai", "native"] = "openai-chat"
    body: dict[str, object] = Field({}, description="Fields to add to every request.")
    stays: bool = Field(
        False,
        description="Slow to start: suspended between its turns instead of stopped.",
    )
    engine: str | None = Field(
        None, description="The same engine without HTTP: a `dspark bench` command line."
    )

    def address(self, name: str) -> Address:
        return Address(name, self.url, BACKENDS[self.backend], model=None, extra_body=self.body)


def read_server_specs(file: Path, only: Sequence[str] = ()) -> dict[str, ServerSpec]:
    """Read the servers of a file, by name; only those in `only` unless it is empty.

    Raises SettingsError for an invalid file and OSError for an unreadable one.
    """
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file}: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict) or not found:
        raise SettingsError(f"{file}: found no servers; accepted: a name, and below it its keys")
    for name in only:
        if name not in found:
            raise SettingsError(f"--only: found {name}; accepted: {', '.join(map(str, found))}")
    return {
        str(name): _server_spec(f"{file}: {name}", value)
        for name, value in found.items()
        if not only or name in only
    }


def command_of(line: str, environment: Mapping[str, str], *, where: str) -> list[str]:
    """Split a command line and substitute $NAMES. Raises SettingsError for an unset name."""
    try:
        return [Template(word).substitute(environment) for word in shlex.split(line)]
    except KeyError as error:
        raise SettingsError(f"{where}: ${error.args[0]} is not set in the environment") from None
    except ValueError as error:
        raise SettingsError(f"{where}: found {line!r} ({error}); accepted: a command") from None


def _server_spec(where: str, value: object) -> ServerSpec:
    try:
        return ServerSpec.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join([where, *map(str, first["loc"])])
        raise SettingsError(f"{at}: {first['msg']}, found {first['input']!r}") from None
