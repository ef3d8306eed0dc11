"""Writes the two documents that are made from the program: `make docs`.

python -m server.reference_docs          docs/settings.md and docs/cli.md
"""

from collections.abc import Mapping
from pathlib import Path

from server.cli import command_parser, overview
from server.commands import COMMANDS
from server.settings_text import reference_table

_DOCS = Path(__file__).parents[1] / "docs"

_CLI_PREFACE = """# Command line

Generated from the program's own help by `make docs`; do not edit by hand.
"""


def documents() -> Mapping[Path, str]:
    """Every generated file and what it ought to hold."""
    return {_DOCS / "settings.md": reference_table(), _DOCS / "cli.md": command_line()}


def command_line() -> str:
    """docs/cli.md, as a whole."""
    parts = [_CLI_PREFACE, "## dspark\n", _fenced(overview())]
    for command in COMMANDS:
        parts += [f"## dspark {command.name}\n", _fenced(command_parser(command).format_help())]
    return "\n".join(parts)


def main() -> None:
    for file, text in documents().items():
        file.write_text(text, encoding="utf-8")


def _fenced(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```\n"


if __name__ == "__main__":
    main()
