"""Lists the commands of `dspark`. A new one needs its file here and a line below."""

import argparse
import importlib
from dataclasses import dataclass
from typing import Protocol, cast


class CommandModule(Protocol):
    """Interface of a command's module; its docstring is the description in its help.

    Importing it loads no torch: `run` imports what is heavy.
    """

    USAGE: str
    __doc__: str | None

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int:
        """Run the command and return its exit code.

        Raises SettingsError, EngineError or OSError, which are reported in one line.
        """
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
    Command("deploy", "serve a model with several replicas, on Ray Serve"),
    Command("generate", "generate text for one prompt on this terminal"),
    Command("batch", "answer a file of requests in OpenAI's batch format"),
    Command("bench", "measure speed, compare one path with another, or profile a round"),
    Command("bench serve", "measure running servers over HTTP and compare them"),
    Command("bench gpu", "check and measure the CUDA path with random models"),
    Command("verify", "compare greedy output with transformers, token by token"),
    Command("train", "train a draft for a target"),
    Command("eval", "measure a draft's accept length per prompt set"),
    Command("calibrate", "calibrate a draft's confidences"),
    Command("doctor", "report what this machine has, what is missing and what would be used"),
    Command("fetch", "fetch the demo model into the cache"),
)
