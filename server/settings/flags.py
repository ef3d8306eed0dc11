"""Defines the grammar of command lines: every setting is a flag, and a misspelt one is refused."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from server.settings.base import SettingsError, shown
from server.settings.names import Catalog, did_you_mean
from server.settings.rendering import default_text
from server.settings.schema import SERVING
from server.settings.sources import Assignment, read_flag

# Flags of other servers that spread a model over devices.
_ONE_DEVICE = (
    "--tensor-parallel-size",
    "--tp-size",
    "--tp",
    "--pipeline-parallel-size",
    "--pp-size",
    "--data-parallel-size",
    "--dp-size",
)
_ONE_MODEL = (
    "a server runs one model on one device; accepted: `dspark deploy`, which runs replicas of it "
    "behind one address (settings below deploy:)"
)
_WIDTH = 100
_DEST = "settings_flags"


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises SettingsError and writes the same help on every terminal."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=_HelpFormatter, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{self.prog}: {shown(message, 400)}; see {self.prog} --help")

    def parse_strictly(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse all of argv.

        Raises SettingsError with the nearest flag for an unknown one, and for a flag given twice;
        settings given twice are found by `load`.
        """
        given: dict[argparse.Action, str] = {}
        for argument in argv:
            flag = argument.partition("=")[0]
            if flag == "--":
                break
            if flag.startswith("--") and flag not in self._option_string_actions:
                if flag in _ONE_DEVICE:
                    raise SettingsError(f"{self.prog}: unknown flag {shown(flag)}; {_ONE_MODEL}")
                known = [f for f in self._option_string_actions if f != "-h"]
                near = did_you_mean(flag, known, otherwise=f"see {self.prog} --help")
                raise SettingsError(f"{self.prog}: unknown flag {shown(flag)}{near}")
            action = self._option_string_actions.get(flag)
            if action is None or isinstance(action, _REPEATABLE):
                continue
            if action in given:
                raise SettingsError(
                    f"{self.prog}: {flag}: given twice; first as {given[action]}; accepted: once"
                )
            given[action] = flag
        return self.parse_args(argv)


def add_settings_flags(
    parser: argparse.ArgumentParser,
    catalog: Catalog[Any] = SERVING,
    *,
    are_listed: bool = False,
) -> None:
    """Add --config, --set and a flag for every setting.

    are_listed: the command's help lists them one by one; else it names the page that does.
    """
    hint = None if are_listed else f"Every setting is a flag here too: see {catalog.reference}."
    group = parser.add_argument_group("settings", hint)
    packaged = ", or the name of a packaged one, such as demo" if catalog is SERVING else ""
    group.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"YAML file with settings{packaged}",
    )
    group.add_argument(
        "--set",
        action=_Assign,
        catalog=catalog,
        metavar="NAME=VALUE",
        help="any setting, by its dotted name",
    )
    groups = {}
    for name, field in catalog.schema.model_fields.items():
        title = _first_line(field.annotation) if are_listed else None
        groups[name] = parser.add_argument_group(name, title)
    for path, setting in catalog.settings.items():
        section = groups[path.partition(".")[0]]
        about = (
            f"{setting.field.description} Accepted: {setting.accepted}. "
            f"Default: {default_text(setting.field)}."
        )
        section.add_argument(
            *catalog.flags(path),
            action=_Assign,
            catalog=catalog,
            path=path,
            metavar="VALUE",
            help=_escape(about) if are_listed else argparse.SUPPRESS,
        )
        for switch, (target, value) in catalog.switches.items():
            if target == path:
                section.add_argument(
                    switch,
                    action=_Assign,
                    catalog=catalog,
                    path=path,
                    value=value,
                    help=f"same as --{path} {value}" if are_listed else argparse.SUPPRESS,
                )


def settings_flags(args: argparse.Namespace) -> list[Assignment]:
    """The settings among the parsed flags, in the order given."""
    return list(getattr(args, _DEST, None) or [])


class _Assign(argparse.Action):
    """Appends an assignment: of `value` or the argument to `path`, or of NAME=VALUE."""

    def __init__(
        self,
        option_strings: Sequence[str],
        dest: str,
        *,
        catalog: Catalog[Any],
        path: str | None = None,
        value: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(option_strings, _DEST, nargs=None if value is None else 0, **options)
        self._catalog, self._path, self._value = catalog, path, value

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        assert option is not None
        name, value = self._path, self._value or values
        if name is None:
            name, equals, value = values.partition("=")
            if not equals:
                raise SettingsError(f"--set: found {shown(name)}; accepted: NAME=VALUE")
            option = f"--set {shown(name)}"
        found = read_flag(option, name, value, self._catalog)
        setattr(namespace, _DEST, [*settings_flags(namespace), found])


_REPEATABLE = (_Assign, argparse._AppendAction, argparse._HelpAction)


class _HelpFormatter(argparse.HelpFormatter):
    """Formats help with one width everywhere, and without a flag's spelling in dashes."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_WIDTH, max_help_position=28)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return str(action.metavar or action.dest)
        shown_flags = [flag for flag in action.option_strings if not _is_dashed_twin(flag)]
        value = f" {action.metavar}" if action.metavar else ""
        return ", ".join(shown_flags) + value


def _is_dashed_twin(flag: str) -> bool:
    """Whether a flag is one like --kv.page-size, which help omits next to --kv.page_size."""
    return "." in flag and "-" in flag.lstrip("-")


def _first_line(section: Any) -> str:
    return _escape((section.__doc__ or "").strip().splitlines()[0])


def _escape(text: str) -> str:
    return text.replace("%", "%%")
