"""What every section of settings has in common: words for types, and no unknown names."""

from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
)


class SettingsError(Exception):
    """Settings, flags or a config file cannot be used; each line is fit for a user's eyes."""

    def __init__(self, *lines: str) -> None:
        super().__init__(*lines)
        self.lines = lines

    def __str__(self) -> str:
        return "\n".join(self.lines)


@dataclass(frozen=True, slots=True)
class Wording:
    """In an annotation: what is accepted, in words that say more than the type."""

    text: str


Text = Annotated[str, Field(min_length=1)]
FolderOrHubId = Annotated[str, Field(min_length=1), Wording("a folder or hub id")]
FolderName = Annotated[str, Field(min_length=1), Wording("a folder")]
FileName = Annotated[str, Field(min_length=1), Wording("a file")]
AutoOrCount = Literal["auto"] | Annotated[int, Field(ge=1)]
AutoOrThreads = Literal["auto"] | Annotated[int, Field(ge=1, le=1024)]
Seconds = Annotated[float, Field(gt=0)]


def _split(value: object) -> object:
    """A flag or variable is one text; commas make it a list."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


TextList = Annotated[
    tuple[Text, ...], BeforeValidator(_split), Wording("a list of texts, or one with commas")
]
KeyRing = Annotated[
    tuple[Annotated[SecretStr, Field(min_length=1)], ...],
    BeforeValidator(_split),
    Field(min_length=1),
    Wording("a key, a list of keys, or one text with commas"),
]


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
