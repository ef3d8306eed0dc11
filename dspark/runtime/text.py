"""Loads the target's tokenizer and chat template."""

import logging
from pathlib import Path

from jinja2 import TemplateSyntaxError

from dspark.runtime.hub import use_cache_if_offline
from engine import EngineConfig, LoadError
from engine.errors import os_error_text
from engine.platform.stage_times import logged_stage
from server.generation.generation_config import read_json_object
from server.settings.base import shown
from server.settings.schema import Settings, SettingsError
from server.settings.text_files import read_text
from server.text.chat_template import ChatTemplateError
from server.text.tokenizer import TextCodec

logger = logging.getLogger(__name__)

_ADAPTER = "adapter_config.json"
_JSON_FILES = (
    "config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
)


def load_text(settings: Settings, config: EngineConfig) -> TextCodec:
    """Load the target's tokenizer and chat template. Raises LoadError."""
    with logged_stage(logger, "importing and loading the tokenizer"):
        return codec_of(
            config.target,
            revision=config.target_revision,
            trust_remote_code=config.trust_remote_code,
            chat_template=settings.model.chat_template,
        )


def codec_of(
    target: str, *, revision: str | None, trust_remote_code: bool, chat_template: str | None
) -> TextCodec:
    """Load the tokenizer of a folder or hub id.

    chat_template is a file. Raises LoadError, or SettingsError for the chat template.
    """
    template = text_of(chat_template, "model.chat_template") if chat_template else None
    use_cache_if_offline("model.path", target, revision)
    _check_files(Path(target))
    try:
        codec = TextCodec.load(
            target,
            revision=revision,
            trust_remote_code=trust_remote_code,
            chat_template=template,
        )
    except Exception as error:  # transformers raises anything for files that are not as it expects
        if not Path(target).is_dir():
            raise LoadError(
                f"model.path: {target!r} is neither a folder here nor to be had from the model "
                f"hub ({type(error).__name__})"
            ) from error
        if not (Path(target) / "config.json").is_file():
            raise LoadError(
                f"model.path: found {target}, a folder without config.json; accepted: the folder "
                "of a model"
            ) from error
        cause = shown(" ".join(f"{type(error).__name__}: {error}".split()), 300)
        raise LoadError(
            f"model.path: no tokenizer in {target} that transformers can load: {cause}"
        ) from error
    problem = _template_error(codec)
    if problem is not None and chat_template is not None:
        raise SettingsError(f"model.chat_template: {chat_template}: {problem}")
    if problem is not None:
        raise LoadError(f"model.path: {target}: {problem} (model.chat_template replaces it)")
    return codec


def _check_files(folder: Path) -> None:
    """Raise LoadError for an adapter, and for a model's small JSON file that is no JSON object."""
    if (folder / _ADAPTER).is_file():
        raise LoadError(
            f"model.path: found {folder / _ADAPTER}, an adapter; accepted: the folder of a whole "
            "model, with the adapter merged into its weights"
        )
    for name in _JSON_FILES:
        if (folder / name).is_file():
            read_json_object(folder / name)


def _template_error(codec: TextCodec) -> str | None:
    """Return why the chat template is not Jinja, so that no chat could use it."""
    try:
        if codec.has_chat_template:
            codec.encode_chat([{"role": "user", "content": "a"}])
    except ChatTemplateError as error:
        cause = error.__cause__
        if isinstance(cause, TemplateSyntaxError):
            return (
                f"found {shown(str(cause.message))} in line {cause.lineno} of the chat template; "
                "accepted: Jinja"
            )
    return None


def text_of(file: str, setting: str) -> str:
    """Read a file that a setting names. Raises SettingsError."""
    try:
        return read_text(Path(file))
    except OSError as error:
        raise SettingsError(f"{setting}: {os_error_text(error)}") from error
    except SettingsError as error:
        raise SettingsError(f"{setting}: {error}") from None
