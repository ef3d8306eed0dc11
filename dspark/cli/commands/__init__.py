"""The commands of `dspark`, one file each. A new one needs its file and a line here."""

import argparse
import importlib
from dataclasses import dataclass
from typing import Protocol, cast


class CommandModule(Protocol):
    """What a command's file offers; its docstring is the description in its help.

    The file is light: what is heavy is imported by `run`.
    """

    USAGE: str
    __doc__: str | None

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int:
        """Do it; the exit code. Raises SettingsError, EngineError or OSError for one line."""
        ...


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    summary: str

    def load(self) -> CommandModule:
        file = self.name.replace(" ", "_")
        return cast(CommandModule, importlib.import_module(f"dspark.cli.commands.{file}"))


COMMANDS: tuple[Command, ...] = (
    Command("serve", "serve a model over HTTP"),
    Command("generate", "answer one prompt on this terminal"),
    Command("bench", "measure speed, compare one path with another, or profile a round"),
    Command("bench serve", "measure running servers over HTTP, ours beside others"),
    Command("bench gpu", "check and measure the CUDA path with random models"),
    Command("verify", "prove that greedy answers are the target's own, with transformers"),
    Command("train", "make a draft for a target"),
    Command("eval", "measure what a draft is worth: accept length per prompt set"),
    Command("calibrate", "make a draft's confidences mean what they say"),
    Command("doctor", "tell what this machine has, what is missing and what will be used"),
    Command("fetch", "fetch the demo model into the cache"),
)
