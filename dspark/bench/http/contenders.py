"""The servers of a comparison, as a YAML file tells how to start them.

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


class Contender(BaseModel):
    """One server, and what is asked of it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    about: str = Field(description="What it is: version, precision, what is switched on.")
    start: str = Field(description="Command line; $NAMES are those of the environment.")
    url: str = Field(pattern=_URL, description="Where it serves when it runs.")
    peer: bool = Field(False, description="Someone else's: ours are held against it.")
    backend: Literal["openai-chat", "openai", "native"] = "openai-chat"
    body: dict[str, object] = Field({}, description="Fields to add to every request.")
    stays: bool = Field(
        False,
        description="It takes long to start: between its turns it is frozen instead of stopped.",
    )
    engine: str | None = Field(
        None, description="The same engine without HTTP: a `dspark bench` command line."
    )

    def address(self, name: str) -> Address:
        return Address(name, self.url, BACKENDS[self.backend], model=None, extra_body=self.body)


def read_contenders(file: Path, only: Sequence[str] = ()) -> dict[str, Contender]:
    """Those of a file, by name, in its order. Raises SettingsError, and OSError without the file.

    only: the names to take; all if there are none.
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
        str(name): _contender(f"{file}: {name}", value)
        for name, value in found.items()
        if not only or name in only
    }


def command_of(line: str, environment: Mapping[str, str], *, where: str) -> list[str]:
    """The words of a command line. Raises SettingsError for a $NAME that is not set."""
    try:
        return [Template(word).substitute(environment) for word in shlex.split(line)]
    except KeyError as error:
        raise SettingsError(f"{where}: ${error.args[0]} is not set in the environment") from None
    except ValueError as error:
        raise SettingsError(f"{where}: found {line!r} ({error}); accepted: a command") from None


def _contender(where: str, value: object) -> Contender:
    try:
        return Contender.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join([where, *map(str, first["loc"])])
        raise SettingsError(f"{at}: {first['msg']}, found {first['input']!r}") from None
