"""Checks arguments and tokenizes prompts, for every command that measures a pair of models."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from dspark.bench.workloads.prompts import EncodedPrompt, Prompt
from dspark.cli.measuring import check_concurrency, check_output, encode, quiet_libraries
from dspark.cli.number_flags import add_temperature_flag, an_integer
from dspark.cli.startup import add_checking_flags, add_model_argument, settle
from dspark.runtime.logs import configure_log
from dspark.runtime.models import resolved_engine_config
from dspark.runtime.text import load_text
from engine import EngineConfig
from server.settings.flags import add_settings_flags
from server.settings.schema import Settings, SettingsError
from server.text.tokenizer import TextCodec


@dataclass(frozen=True, slots=True)
class Prepared:
    """The engine's config and tokenized prompts."""

    config: EngineConfig
    text: TextCodec
    encoded: tuple[EncodedPrompt, ...]


def add_pair_flags(parser: argparse.ArgumentParser) -> None:
    """Add MODEL, --check, --print-config and every setting."""
    add_model_argument(parser)
    add_checking_flags(parser)
    add_settings_flags(parser)


def add_temperature_flags(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Add --temperature and --seed."""
    add_temperature_flag(parser, meaning)
    add_seed_flag(parser)


def add_seed_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seed", type=an_integer, default=0, metavar="N", help="seed of sampling; default 0"
    )


def checked_settings(args: argparse.Namespace) -> Settings | None:
    """Load settings as `settle` does, and check the common arguments. Raises SettingsError."""
    settings = settle(args)
    if settings is not None:
        check_concurrency(args, settings)
        check_output(args.output)
    return settings


def require_draft(settings: Settings, *, purpose: str) -> None:
    """Check that the settings have a draft. Raises SettingsError."""
    algorithm = settings.speculative.algorithm
    if algorithm != "dspark":
        raise SettingsError(
            f"speculative.algorithm: found {algorithm}; accepted: dspark, with a draft to {purpose}"
        )


def prepare(settings: Settings, prompts: Sequence[Prompt]) -> Prepared:
    """Configure the log, find the models and tokenize. Raises SettingsError or LoadError."""
    configure_log("warning")
    config = resolved_engine_config(settings)
    text = load_text(settings, config)
    encoded = encode(text, prompts)
    quiet_libraries()
    return Prepared(config, text, encoded)
