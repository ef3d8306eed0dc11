"""Defines what all sections of settings share: their base class, their types, their error."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

_LONGEST = 120


class SettingsError(Exception):
    """Settings, flags or a file that they name cannot be used; each line is a message for users."""

    def __init__(self, *lines: str) -> None:
        super().__init__(*lines)
        self.lines = lines

    def __str__(self) -> str:
        return "\n".join(self.lines)


def shown(text: str, limit: int = _LONGEST) -> str:
    """Cut a text for a message and escape what a terminal cannot print."""
    head = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:limit])
    return head if len(text) <= limit else f"{head}... ({len(text)} characters)"


def quoted(value: object) -> str:
    """Quote a value for a message, cut to a readable length."""
    return "null" if value is None else shown(repr(value))


@dataclass(frozen=True, slots=True)
class Accepts:
    """Annotates a type with a description of its values, and with the kind of path they are."""

    text: str
    path: Literal["target", "model", "file", "folder", "output"] | None = None
    is_beside_config: bool = False  # relative paths count from the YAML file even without ./


Text = Annotated[str, Field(min_length=1)]
FolderOrHubId = Annotated[Text, Accepts("a folder or hub id", path="model")]
TargetName = Annotated[Text, Accepts("a folder, a GGUF file or a hub id", path="target")]
FileName = Annotated[Text, Accepts("a file", path="file")]
FolderName = Annotated[Text, Accepts("a folder", path="folder")]
OutputFolder = Annotated[Text, Accepts("a folder", path="output")]
AutoOrCount = Literal["auto"] | Annotated[int, Field(ge=1)]
AutoOrThreads = Literal["auto"] | Annotated[int, Field(ge=1, le=1024)]
Seconds = Annotated[float, Field(gt=0)]
TextList = Annotated[tuple[Text, ...], Accepts("a list of texts, or one text with commas")]
KeyRing = Annotated[
    tuple[Annotated[SecretStr, Field(min_length=1)], ...],
    Field(min_length=1),
    Accepts("a key, a list of keys, or one text with commas"),
]


class Section(BaseModel):
    """Base class of a section: immutable, and without names that are not declared."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
