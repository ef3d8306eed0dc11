"""Loads the target's tokenizer and chat template."""

from pathlib import Path

from dspark.runtime.hub import use_cache_if_offline
from engine import EngineConfig, LoadError
from engine.errors import os_error_text
from server.settings.schema import Settings, SettingsError
from server.settings.text_files import read_text
from server.text.tokenizer import TextCodec


def load_text(settings: Settings, config: EngineConfig) -> TextCodec:
    """Load the target's tokenizer and chat template. Raises LoadError."""
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
    try:
        return TextCodec.load(
            target,
            revision=revision,
            trust_remote_code=trust_remote_code,
            chat_template=template,
        )
    except (OSError, ValueError) as error:
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
        raise LoadError(f"model.path: no tokenizer in {target}: {error}") from error


def text_of(file: str, setting: str) -> str:
    """Read a file that a setting names. Raises SettingsError."""
    try:
        return read_text(Path(file))
    except OSError as error:
        raise SettingsError(f"{setting}: {os_error_text(error)}") from error
    except SettingsError as error:
        raise SettingsError(f"{setting}: {error}") from None
