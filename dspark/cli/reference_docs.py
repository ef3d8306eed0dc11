"""Writes the documents that are made from the program: `make docs`.

python -m dspark.cli.reference_docs    docs/settings.md, docs/training-settings.md, docs/cli.md
"""

from collections.abc import Mapping
from pathlib import Path

from dspark.cli.commands import COMMANDS
from dspark.cli.main import command_parser, overview
from dspark.training.settings.loading import training_table
from server.settings.rendering import reference_table

_DOCS = Path("docs")  # of the checkout that this runs in

_CLI_PREFACE = """# Command line

Generated from the program's own help by `make docs`; do not edit by hand.

Exit codes: 0 all went well; 1 it could not be done, or a measurement broke a promise; 2 the command
line or a setting is wrong; 130 interrupted; 143 terminated. `dspark serve` ends with 0 after either
signal, once it serves. Foreseen failures are told on stderr, a line each.
"""


_TRAINING_PREFACE = """# Settings of `dspark train`

Generated from `dspark/training/settings/schema.py` by `make docs`; do not edit by hand.

They stand in the YAML file that `--config` names; the part before the dot is a section, and
`--set training.epochs=2` corrects one. Unknown names are refused with the nearest valid one. A
folder or file that begins with `./` or `../`, `output` and the prompt files are looked for beside
the YAML file; in `--set`, from the working directory. See [training.md](training.md).
"""


def documents() -> Mapping[Path, str]:
    """Every generated file and what it ought to hold."""
    return {
        _DOCS / "settings.md": reference_table(),
        _DOCS / "training-settings.md": f"{_TRAINING_PREFACE}\n{training_table()}",
        _DOCS / "cli.md": command_line(),
    }


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
