"""The command line's grammar: every setting is a flag, and whoever misspells one is told how."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from server.settings.names import FIELDS, FLAG_ALIASES, PATH_ALIASES, SWITCHES, did_you_mean
from server.settings.rendering import accepted, default_text
from server.settings.schema import Settings, SettingsError
from server.settings.sources import Assignment, read_flag

_WIDTH = 100
_DEST = "settings_flags"


class Parser(argparse.ArgumentParser):
    """argparse that raises SettingsError and writes the same help on every terminal."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=_HelpFormatter, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{self.prog}: {message}; see {self.prog} --help")

    def parse_strictly(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse all of argv. Raises SettingsError with the nearest flag for one that is unknown."""
        for word in argv:
            flag = word.partition("=")[0]
            if flag == "--":
                break
            if flag.startswith("--") and flag not in self._option_string_actions:
                near = did_you_mean(flag, [f for f in self._option_string_actions if f != "-h"])
                raise SettingsError(f"{self.prog}: unknown flag {flag}{near}")
        return self.parse_args(argv)


def add_settings_flags(parser: argparse.ArgumentParser, *, are_listed: bool = False) -> None:
    """--config, --set, and a flag for every setting; listed one by one in the help of one command.

    The others take the same flags and say where to read about them.
    """
    hint = None if are_listed else "Every setting is a flag here too: see `dspark serve --help`."
    group = parser.add_argument_group("settings", hint)
    group.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="YAML file with settings, or the name of a packaged one, such as demo",
    )
    group.add_argument(
        "--set", action=_SetAny, dest=_DEST, metavar="NAME=VALUE", help="any setting, by its name"
    )
    for name, field in Settings.model_fields.items():
        section = parser.add_argument_group(
            name, _first_line(field.annotation) if are_listed else None
        )
        _add_section(section, name, are_listed=are_listed)


def _add_section(group: argparse._ArgumentGroup, name: str, *, are_listed: bool) -> None:
    for path, field in FIELDS.items():
        if path.startswith(f"{name}."):
            words = (
                f"{field.description} Accepted: {accepted(field)}. Default: {default_text(field)}."
            )
            group.add_argument(
                *_spellings(path),
                action=_SetOne,
                dest=_DEST,
                path=path,
                metavar="VALUE",
                help=_escape(words) if are_listed else argparse.SUPPRESS,
            )
    for switch in SWITCHES:
        if switch.path.startswith(f"{name}."):
            words = f"same as --{switch.path} {str(switch.value).lower()}"
            group.add_argument(
                switch.flag,
                action=_SetSwitch,
                dest=_DEST,
                path=switch.path,
                value=switch.value,
                help=words if are_listed else argparse.SUPPRESS,
            )


def settings_flags(args: argparse.Namespace) -> list[Assignment]:
    """The settings among the parsed flags, in the order given."""
    return list(getattr(args, _DEST) or [])


class _SetOne(argparse.Action):
    def __init__(self, *args: Any, path: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self._path = path

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        assert option is not None, f"{self._path} is a flag"
        _append(namespace, read_flag(option, self._path, values))


class _SetSwitch(argparse.Action):
    def __init__(
        self, option_strings: Sequence[str], dest: str, *, path: str, value: bool, **options: Any
    ) -> None:
        super().__init__(option_strings, dest, nargs=0, **options)
        self._path, self._value = path, value

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        assert option is not None, f"{self._path} is a flag"
        _append(namespace, read_flag(option, self._path, self._value))


class _SetAny(argparse.Action):
    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        name, equals, value = values.partition("=")
        if not equals:
            raise SettingsError(f"--set: found {values}; accepted: NAME=VALUE")
        _append(namespace, read_flag(f"--set {name}", name, value))


class _HelpFormatter(argparse.HelpFormatter):
    """One width everywhere, and of many spellings of a flag each only once."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_WIDTH, max_help_position=28)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return str(action.metavar or action.dest)
        shown = [flag for flag in action.option_strings if not _is_dashed_twin(flag)]
        value = f" {action.metavar}" if action.metavar else ""
        return ", ".join(shown) + value


def _append(namespace: argparse.Namespace, assignment: Assignment) -> None:
    setattr(namespace, _DEST, [*(getattr(namespace, _DEST) or []), assignment])


def _spellings(path: str) -> list[str]:
    names = [path, *(alias for alias, target in PATH_ALIASES.items() if target == path)]
    flags = [f"--{name}" for name in names]
    flags += [flag.replace("_", "-") for flag in flags]
    return list(dict.fromkeys([*flags, *FLAG_ALIASES.get(path, ())]))


def _is_dashed_twin(flag: str) -> bool:
    """--kv.page-size, which is understood beside --kv.page_size and needs no line of its own."""
    return "." in flag and "-" in flag.lstrip("-")


def _first_line(section: Any) -> str:
    return _escape((section.__doc__ or "").strip().splitlines()[0])


def _escape(text: str) -> str:
    return text.replace("%", "%%")
