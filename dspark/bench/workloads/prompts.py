"""Reads prompts from a JSONL file and spreads them over their categories. Loads no torch.

One JSON object per line, in one of three forms; `category` is optional in each:

    {"category": "chat", "prompt": "..."}
    {"turns": ["...", "..."]}                    only the first turn is used
    {"messages": [{"role": "user", "content": "..."}, ...]}
"""

import json
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain, zip_longest
from pathlib import Path

from server.settings.base import quoted, shown
from server.settings.text_files import is_unicode

NO_CATEGORY = "other"

_OWN_FILE = "prompts.jsonl"
_FORMS = "prompt, turns or messages"


class PromptFileError(ValueError):
    """A prompt file is invalid; the message names the file, the line and the accepted forms."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One conversation up to the model's turn, and its category."""

    category: str
    messages: tuple[Mapping[str, str], ...]  # each with a role and a content


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt as token ids."""

    category: str
    token_ids: tuple[int, ...]


def read_prompts(file: Path | None = None) -> tuple[Prompt, ...]:
    """Read the prompts of a file, or those that ship with the project.

    Raises PromptFileError for an invalid line, and OSError for an unreadable file.
    """
    name = file or _OWN_FILE
    return tuple(parse_prompt(line, f"{name}:{number}") for number, line in prompt_lines(file))


def prompt_lines(file: Path | None) -> list[tuple[int, bytes]]:
    """Return the non-blank lines of a prompt file, each with its number from 1.

    Raises PromptFileError for a file without any, and OSError for an unreadable one.
    """
    source = file or files("dspark.bench.workloads") / _OWN_FILE
    content = source.read_bytes().removeprefix(BOM_UTF8).replace(b"\r\n", b"\n")
    pieces = content.replace(b"\r", b"\n").split(b"\n")
    lines = [(number, line) for number, line in enumerate(pieces, 1) if line.strip()]
    if not lines:
        raise PromptFileError(f"{file}: found no prompt; accepted: one JSON object a line")
    return lines


def spread(prompts: Sequence[Prompt], count: int) -> tuple[Prompt, ...]:
    """Return `count` prompts, taking the categories in turn and each in its order."""
    assert count <= len(prompts), f"{count} of {len(prompts)} prompts"
    by_category: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_category.setdefault(prompt.category, []).append(prompt)
    turns = chain.from_iterable(zip_longest(*by_category.values()))
    return tuple(prompt for prompt in turns if prompt is not None)[:count]


def parse_prompt(line: bytes, where: str) -> Prompt:
    """Parse one line. Raises PromptFileError, which starts with `where`."""
    try:
        found = json.loads(line.decode())
        is_text = is_unicode(json.dumps(found, ensure_ascii=False))
    except UnicodeDecodeError:
        raise PromptFileError(
            f"{where}: found bytes that are not UTF-8; accepted: text in UTF-8"
        ) from None
    except ValueError as error:
        raise PromptFileError(f"{where}: this is no JSON ({error})") from None
    except RecursionError:
        raise PromptFileError(f"{where}: this JSON is nested too deeply") from None
    if not is_text:
        raise PromptFileError(f"{where}: found a lone surrogate; accepted: Unicode text")
    if not isinstance(found, dict):
        raise PromptFileError(f"{where}: found {_kind(found)}; accepted: an object with {_FORMS}")
    category = found.get("category", NO_CATEGORY)
    if not isinstance(category, str) or not category:
        raise PromptFileError(f"{where}: category: found {quoted(category)}; accepted: a name")
    return Prompt(category, _messages(found, where))


def _messages(found: Mapping[str, object], where: str) -> tuple[Mapping[str, str], ...]:
    match found:
        case {"prompt": str(text)} if text.strip():
            return ({"role": "user", "content": text},)
        case {"turns": [str(text), *_]} if text.strip():
            return ({"role": "user", "content": text},)
        case {"messages": [_, *_] as values}:
            messages = [message for message in map(_message, values) if message is not None]
            if len(messages) == len(values):
                return tuple(messages)
    raise PromptFileError(
        f"{where}: found the keys {shown(', '.join(found)) or '(none)'}; accepted: {_FORMS}, as a "
        "text, a list of texts and a list of objects with role and content; none of them empty"
    )


def _message(value: object) -> Mapping[str, str] | None:
    match value:
        case {"role": str(role), "content": str(content)} if role and content:
            return {"role": role, "content": content}
    return None


def _kind(value: object) -> str:
    return "a list" if isinstance(value, list) else "a single value"
