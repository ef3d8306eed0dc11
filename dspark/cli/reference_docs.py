"""Generates documents from the program: `make docs`.

python -m dspark.cli.reference_docs    docs/settings.md, docs/training-settings.md, docs/cli.md
"""

from collections.abc import Mapping
from pathlib import Path

from dspark.cli.commands import COMMANDS
from dspark.cli.main import command_parser, overview
from dspark.training.settings.schema import TRAINING
from server.settings.rendering import reference_table
from server.settings.schema import SERVING

_DOCS = Path("docs")  # of the checkout that this runs in

_CLI_PREFACE = """# Command line

Generated from the program's own help by `make docs`; do not edit by hand.

Exit codes: 0 success; 1 failure, or a measurement broke a promise; 2 wrong command line or
settings; 130 interrupted; 143 terminated. `dspark serve` exits with 0 after either signal, once it
serves. Expected failures are one line each on stderr.
"""


_SETTINGS_PREFACE = """# Settings

Generated from `server/settings/schema.py` by `make docs`; do not edit by hand.

A setting can be given in four ways. The first in this list that gives it wins:

1. a flag: `--kv.page_size 32`, `--set kv.page_size=32`, or a shorter name from the last column;
2. an environment variable: `DSPARK__KV__PAGE_SIZE=32`;
3. the YAML file given with `--config`;
4. the default.

In YAML the part before the dot is a section. Dashes may replace underscores. Unknown names are
refused with the nearest valid one. A setting that the flags, the environment or the file give
twice, in whatever spellings, is refused with both places. A value means the same in every place:
`010` is ten, and a list may be one text with commas. Aliases (`*name`) work for single values;
merge keys (`<<`) and tags are refused.

A path that begins with `./` or `../` counts from the folder of the YAML file that names it; in a
flag or an environment variable, from the working directory. Any other relative path
(`models/draft`) counts from the working directory wherever it is written. It is a hub id where one
is accepted and there is no such folder.

`dspark serve --print-config` shows the effective settings and the origin of each one; `--check`
validates them and exits.
"""

_TRAINING_PREFACE = """# Settings of `dspark train`

Generated from `dspark/training/settings/schema.py` by `make docs`; do not edit by hand.

They follow the rules of the server's settings: see [settings.md](settings.md). Environment
variables begin with `DSPARK_TRAIN__`: `DSPARK_TRAIN__TRAINING__EPOCHS=2`. In the YAML file,
relative paths of `output` and of the prompt files count from its folder, with or without `./`.
See [training.md](training.md).
"""


def documents() -> Mapping[Path, str]:
    """Generate every file: its path and its text."""
    return {
        _DOCS / "settings.md": f"{_SETTINGS_PREFACE}\n{reference_table(SERVING)}",
        _DOCS / "training-settings.md": f"{_TRAINING_PREFACE}\n{reference_table(TRAINING)}",
        _DOCS / "cli.md": command_line(),
    }


def command_line() -> str:
    """Generate docs/cli.md."""
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
