"""Reads prompts and prints results, for every command that measures."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from dspark.bench.report.html_report import html_report
from dspark.bench.report.outcome import Outcome
from dspark.bench.workloads.prompts import (
    EncodedPrompt,
    Prompt,
    PromptFileError,
    read_prompts,
    spread,
)
from dspark.cli.number_flags import at_least_one
from engine.errors import os_error_text
from server.settings.rendering import public_values
from server.settings.schema import Settings, SettingsError
from server.text.chat_template import ChatTemplateError
from server.text.tokenizer import TextCodec

if TYPE_CHECKING:
    from dspark.bench.running import Measurement

_DEFAULT_PROMPTS = 12
_DEFAULT_MAX_TOKENS = 96
_ARGUMENTS = (
    "compare",
    "profile",
    "turns",
    "backend",
    "request_rate",
    "vary_prompts",
    "ignore_eos",
    "prompts",
    "num_prompts",
    "max_tokens",
    "concurrency",
    "trials",
    "temperature",
    "temperatures",
    "seed",
)


def add_prompt_flags(
    parser: argparse.ArgumentParser, *, usual_prompts: int = _DEFAULT_PROMPTS
) -> None:
    """Add --prompts with one file, and `add_amount_flags`."""
    parser.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="JSONL with prompt, turns or messages, and an optional category; "
        "default: 75 packaged prompts",
    )
    add_amount_flags(parser, usual_prompts=usual_prompts)


def add_amount_flags(
    parser: argparse.ArgumentParser, *, usual_prompts: int = _DEFAULT_PROMPTS
) -> None:
    """Add --num-prompts, --max-tokens, --concurrency and --output."""
    parser.add_argument(
        "--num-prompts",
        type=at_least_one,
        metavar="N",
        help=f"spread evenly over categories; default {usual_prompts}, or all if fewer",
    )
    parser.set_defaults(usual_prompts=usual_prompts)
    parser.add_argument(
        "--max-tokens",
        type=at_least_one,
        default=_DEFAULT_MAX_TOKENS,
        metavar="N",
        help=f"most output tokens of each prompt; default {_DEFAULT_MAX_TOKENS}",
    )
    parser.add_argument(
        "--concurrency",
        "--max-concurrency",
        type=at_least_one,
        default=1,
        metavar="N",
        help="requests at a time; default 1",
    )
    parser.add_argument(
        "--output",
        "--json",
        type=Path,
        metavar="FILE",
        help="also write the JSON to this file; in a folder its name has the date",
    )


def chosen_prompts(args: argparse.Namespace) -> tuple[Prompt, ...]:
    """Read the prompts of the arguments. Raises SettingsError."""
    return pick(prompts_in(args.prompts), args)


def prompts_in(file: Path | None) -> tuple[Prompt, ...]:
    """Read every prompt of a file, or the packaged ones. Raises SettingsError."""
    try:
        return read_prompts(file)
    except PromptFileError as error:
        raise SettingsError(f"--prompts: {error}") from None
    except OSError as error:
        raise SettingsError(f"--prompts: {os_error_text(error)}") from None


def pick(prompts: Sequence[Prompt], args: argparse.Namespace) -> tuple[Prompt, ...]:
    """Take --num-prompts of the prompts, categories in turn. Raises SettingsError."""
    count = args.num_prompts or min(args.usual_prompts, len(prompts))
    if count > len(prompts):
        raise SettingsError(
            f"--num-prompts: found {count}; accepted: at most {len(prompts)}, "
            "the number of prompts in the file"
        )
    return spread(prompts, count)


def check_concurrency(args: argparse.Namespace, settings: Settings) -> None:
    """Check that the engine runs so many requests. Raises SettingsError."""
    limit = settings.scheduler.max_running_requests
    if args.concurrency > limit:
        raise SettingsError(
            f"--concurrency: found {args.concurrency}; accepted: at most {limit}, which is "
            "scheduler.max_running_requests"
        )


def check_output(output: Path | None) -> None:
    """Check early that the output can be written. Raises SettingsError."""
    if output is not None and not output.is_dir() and not output.parent.is_dir():
        raise SettingsError(f"--output: found {output}; accepted: a file in a folder that exists")


def check_picture(file: Path | None, *, flag: str) -> None:
    """Check early that a picture or a page can be written. Raises SettingsError."""
    if file is not None and (file.is_dir() or not file.parent.is_dir()):
        raise SettingsError(f"{flag}: found {file}; accepted: a file in a folder that exists")


def encode(text: TextCodec, prompts: Sequence[Prompt]) -> tuple[EncodedPrompt, ...]:
    """Tokenize prompts as the server does, with the chat template if any. Raises SettingsError."""
    try:
        return tuple(
            EncodedPrompt(prompt.category, tuple(_token_ids(text, prompt))) for prompt in prompts
        )
    except ChatTemplateError as error:
        raise SettingsError(f"--prompts: {error}") from error


@contextmanager
def progress_bar(total: int) -> Iterator[Callable[[str], None]]:
    """Yield a function that reports the next run: in a bar on a terminal, else in a line."""
    if not sys.stderr.isatty():
        yield lambda label: print(label, file=sys.stderr, flush=True)
        return
    with tqdm(total=total, file=sys.stderr, dynamic_ncols=True, unit="run", leave=False) as bar:
        num_begun = 0

        def begin(label: str) -> None:
            nonlocal num_begun
            bar.update(min(num_begun, 1))  # the previous run is over
            num_begun += 1
            bar.set_description(label)

        yield begin


def quiet_libraries() -> None:
    """Disable the progress bars of model loading without a terminal."""
    from transformers.utils import logging as transformers_logging

    if not sys.stderr.isatty():
        transformers_logging.disable_progress_bar()


def publish(
    measurement: "Measurement",
    *,
    title: str,
    notes: Sequence[str],
    args: argparse.Namespace,
    settings: Settings,
) -> int:
    """Print a measurement of this configuration, as `print_result` does."""
    return print_result(
        measurement.outcome,
        title=title,
        notes=[*notes, *measurement.notes],
        args=args,
        values={
            **measurement.circumstances,
            "arguments": own_arguments(args),
            "config_file": None if args.config is None else str(args.config),
            "config": public_values(settings),
        },
    )


def print_result(
    outcome: Outcome,
    *,
    title: str,
    notes: Sequence[str],
    args: argparse.Namespace,
    values: Mapping[str, object],
) -> int:
    """Print the table and then one JSON line, and return 1 if a promise is broken, else 0.

    values: the circumstances, added to the outcome's values in the JSON.
    """
    print("\n".join([title, "", *outcome.lines()]))
    for note in notes:
        print(f"note: {note}")
    result = {
        "command": args.command,
        **values,
        "holds": outcome.holds,
        **outcome.values(),
        "notes": list(notes),
    }
    line = json.dumps(_shortened(result), ensure_ascii=False, allow_nan=False)
    print(line)  # first, because the file may not fit the disk
    if args.output is not None:
        _output_file(args).write_text(line + "\n", encoding="utf-8")
    if getattr(args, "html", None) is not None:
        args.html.write_text(html_report(json.loads(line), title=title), encoding="utf-8")
    return 0 if outcome.holds else 1


def own_arguments(args: argparse.Namespace) -> Mapping[str, object]:
    """Return the command's arguments without settings, which are in `config`."""
    values = {name: getattr(args, name) for name in _ARGUMENTS if hasattr(args, name)}
    return {name: str(v) if isinstance(v, Path) else v for name, v in values.items()}


def describe_prompts(prompts: Sequence[Prompt]) -> str:
    """Count prompts by category: "12 prompts (chat 3, code 3, ...)"."""
    counts: dict[str, int] = {}
    for prompt in prompts:
        counts[prompt.category] = counts.get(prompt.category, 0) + 1
    kinds = ", ".join(f"{name} {count}" for name, count in counts.items())
    return f"{len(prompts)} prompts ({kinds})"


def _shortened(value: object) -> object:
    """Round every number to seven digits."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, Mapping):
        return {name: _shortened(item) for name, item in value.items()}
    return [_shortened(item) for item in value] if isinstance(value, list | tuple) else value


def _token_ids(text: TextCodec, prompt: Prompt) -> list[int]:
    if text.has_chat_template:
        return text.encode_chat(prompt.messages)
    return text.encode("\n\n".join(message["content"] for message in prompt.messages))


def _output_file(args: argparse.Namespace) -> Path:
    output: Path = args.output
    if not output.is_dir():
        return output
    words = [args.command, getattr(args, "compare", None), f"{datetime.now():%Y%m%d-%H%M%S}"]
    return output / f"{'-'.join(word for word in words if word)}.json"
