"""What every command that runs a model does first: settings, log, target, engine."""

import argparse
import dataclasses
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pydantic import SecretStr

from dspark.cli.progress import TerminalProgress
from dspark.demo.target import ensure_demo_target
from engine import EngineClient, EngineConfig, LoadError
from engine.errors import os_error_text
from engine.platform.cache_dir import default_cache_dir
from engine.platform.host import find_cuda
from server.http.auth import KeyRing
from server.settings.engine_config import to_engine_config
from server.settings.flags import settings_flags
from server.settings.loading import load_settings
from server.settings.model_sources import DEMO_NAME
from server.settings.rendering import effective_yaml
from server.settings.schema import Settings, SettingsError
from server.settings.sources import Assignment
from server.text.tokenizer import TextCodec

_OURS = ("dspark", "server", "engine", "draft", "kv_pool")
# Libraries that warn about what is no concern of ours: parts of torchao for other hardware, and
# torch about the way in which torchao registers its types.
_CHATTERERS = ("torchao", "torch.utils._pytree")


def add_checking_flags(parser: argparse.ArgumentParser) -> None:
    """--check and --print-config."""
    parser.add_argument("--check", action="store_true", help="validate the settings and exit")
    parser.add_argument(
        "--print-config",
        action="store_true",
        help="print the effective settings, with where each comes from, and exit",
    )


def settle(args: argparse.Namespace, *, more: Sequence[Assignment] = ()) -> Settings | None:
    """The settings of a command line; None if it only asked to check or print them.

    `more` are settings that the command's own arguments stand for. Raises SettingsError.
    """
    flags = [*more, *settings_flags(args)]
    resolved = load_settings(args.config, flags=flags, environ=os.environ)
    if args.print_config:
        print(effective_yaml(resolved.settings, resolved.origins), end="")
    elif args.check:
        print(f"the settings are valid{_not_looked_up(resolved.settings)}")
    return None if args.check or args.print_config else resolved.settings


def _not_looked_up(settings: Settings) -> str:
    """What a check has left to the start: whether models of a hub are there."""
    named = {
        "model.path": settings.model.path,
        "speculative.draft_model": settings.speculative.draft_model,
    }
    left = [
        f"{name} {value}"
        for name, value in named.items()
        if value is not None and value != DEMO_NAME and not Path(value).is_dir()
    ]
    return f"; not looked up, for that happens at the start: {', '.join(left)}" if left else ""


def configure_log(level: str) -> None:
    """Lines to stderr; libraries are heard only when something is wrong."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )
    for name in _OURS:
        logging.getLogger(name).setLevel(level.upper())
    for name in _CHATTERERS:
        logging.getLogger(name).setLevel(logging.ERROR)


def resolved_engine_config(settings: Settings) -> EngineConfig:
    """The engine's config with a target that can be loaded; fetches the demo target if asked for.

    Raises LoadError.
    """
    config = to_engine_config(settings)
    if config.device == "cuda" and (missing := find_cuda().missing) is not None:
        raise LoadError(f"device is 'cuda', but {missing}; accepted here: auto, cpu")
    if config.target != DEMO_NAME:
        return config
    with TerminalProgress(stream=sys.stderr) as progress:
        folder = ensure_demo_target(cache_dir=default_cache_dir(os.environ), progress=progress)
    return dataclasses.replace(config, target=str(folder))


def load_text(settings: Settings, config: EngineConfig) -> TextCodec:
    """The target's tokenizer and chat template. Raises LoadError."""
    return codec_of(
        config.target,
        revision=config.target_revision,
        trust_remote_code=config.trust_remote_code,
        chat_template=settings.model.chat_template,
    )


def codec_of(
    target: str, *, revision: str | None, trust_remote_code: bool, chat_template: str | None
) -> TextCodec:
    """The same for a target by its folder or hub id. Raises LoadError, or SettingsError for the
    chat template."""
    template = _text_of(chat_template, "model.chat_template") if chat_template else None
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


def _text_of(file: str, setting: str) -> str:
    """A file that a setting names. Raises SettingsError."""
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{setting}: {os_error_text(error)}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{setting}: found {file} with bytes that are not UTF-8") from error


@contextmanager
def running_engine(config: EngineConfig) -> Iterator[EngineClient]:
    """An engine for as long as the block lasts. Raises LoadError."""
    from transformers.utils import logging as transformers_logging

    from engine.build import build_engine  # heavy: loads torch and transformers

    if not sys.stderr.isatty():
        transformers_logging.disable_progress_bar()
    engine = build_engine(config)
    try:
        yield engine
    finally:
        engine.close()


def keys_of(settings: Settings) -> KeyRing:
    """The keys from their settings or files. Raises SettingsError for a file without one."""
    server = settings.server
    return KeyRing(
        callers=_keys("api_key", server.api_key, server.api_key_file),
        admins=_keys("admin_api_key", server.admin_api_key, server.admin_api_key_file),
    )


def _keys(name: str, given: Sequence[SecretStr] | None, file: str | None) -> tuple[str, ...]:
    if given is not None:
        return tuple(key.get_secret_value() for key in given)
    if file is None:
        return ()
    lines = [line.strip() for line in _text_of(file, f"server.{name}_file").splitlines()]
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise SettingsError(f"server.{name}_file: found {file} empty; accepted: a key a line")
    return keys
