"""Configs load, generated pages are up to date, and the commands in documents work."""

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from dspark.cli.main import command_parser, find_command
from dspark.cli.reference_docs import documents
from dspark.training.settings.schema import TRAINING
from dspark.training.settings.training_config import to_training_config
from server.settings.engine_config import to_engine_config
from server.settings.flags import settings_flags
from server.settings.loading import load, load_settings
from server.settings.sources import read_flag
from tests.support.paths import ROOT
from tests.support.server.fakes import FakeEngine, app_with

TRAININGS = sorted((ROOT / "configs").glob("train-*.yaml"))
CONFIGS = sorted(set((ROOT / "configs").glob("*.yaml")) - set(TRAININGS))
SKIPPED = {".venv", ".git", ".hypothesis", ".pytest_cache", "node_modules"}
MARKDOWN = sorted(
    file for file in ROOT.rglob("*.md") if not SKIPPED & set(file.relative_to(ROOT).parts)
)
README = ROOT / "README.md"


def fences(file: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", file.read_text(), re.MULTILINE | re.DOTALL)


def shell_lines() -> Iterator[tuple[Path, list[str]]]:
    """Every command in a bash fence, as (file, words); continuation lines are joined."""
    for file in MARKDOWN:
        for fence in fences(file, "bash"):
            for command in _commands(fence):
                yield file, shlex.split(command, comments=True)


def _commands(fence: str) -> list[str]:
    """Split a fence at line ends outside quotes."""
    commands, open_command = [], ""
    for line in fence.replace("\\\n", " ").splitlines():
        open_command += line + "\n"
        try:
            shlex.split(open_command, comments=True)
        except ValueError:  # a quotation continues on the next line
            continue
        commands.append(open_command)
        open_command = ""
    assert not open_command, f"unfinished command: {open_command}"
    return [command for command in commands if command.strip()]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


# -- configs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("config", CONFIGS, ids=lambda file: file.name)
def test_every_config_loads(config: Path) -> None:
    settings = load_settings(config).settings
    assert to_engine_config(settings).draft


@pytest.mark.parametrize("config", TRAININGS, ids=lambda file: file.name)
def test_every_training_config_loads_with_a_prompt_file(config: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "one"}\n')
    flag = read_flag("--data.prompts", "data.prompts", str(prompts), TRAINING)
    settings = load(TRAINING, config, flags=[flag]).settings
    assert to_training_config(settings, target="t").output.is_absolute()


# -- generated pages -------------------------------------------------------------------------


@pytest.mark.parametrize("file", documents(), ids=lambda file: file.name)
def test_generated_pages_are_up_to_date(file: Path) -> None:
    assert file.read_text() == documents()[file], f"{file.name} is stale: run make docs"


# -- commands to copy -----------------------------------------------------------------------


def test_make_targets_in_documents_exist() -> None:
    named = {word for _, words in shell_lines() if words[:1] == ["make"] for word in words[1:2]}
    assert {"serve", "check", "test"} <= named
    assert named <= make_targets()


def test_dspark_lines_in_documents_are_accepted() -> None:
    num_checked = 0
    for _, words in shell_lines():
        if not words or not words[0].endswith("dspark"):
            continue
        command = find_command(words[1:])
        rest = words[1 + len(command.name.split()) :]
        args = command_parser(command).parse_strictly(rest)
        if words[1] == "train":
            assert ROOT / args.config in TRAININGS
        elif "--config" in words:
            load_settings(ROOT / args.config, flags=settings_flags(args))
        num_checked += 1
    assert num_checked >= 3


def test_curl_lines_in_the_readme_are_answered() -> None:
    client = TestClient(app_with(FakeEngine("one two three", max_len=1000)))
    routes = []
    for file, words in shell_lines():
        if file != README or words[0] != "curl":
            continue
        route = next(word for word in words if "localhost:8000" in word).partition(":8000")[2]
        answer = client.post(route, json=json.loads(words[words.index("-d") + 1]))
        assert answer.status_code == 200, answer.text
        routes.append(route)
    assert routes == ["/v1/chat/completions"]


def test_python_in_the_readme_compiles() -> None:
    for snippet in fences(README, "python"):
        compile(snippet, "README.md", "exec")


def test_the_newest_entry_of_the_changelog_is_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    entries = re.findall(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert entries[0] == version


@pytest.mark.parametrize("file", MARKDOWN, ids=lambda file: str(file.relative_to(ROOT)))
def test_relative_links_resolve(file: Path) -> None:
    text = re.sub(r"```.*?```", "", file.read_text(), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    relative = [t.partition("#")[0] for t in targets if not re.match(r"[a-z]+:|#", t)]
    broken = [target for target in relative if not (file.parent / target).exists()]
    assert broken == []


def test_decisions_are_numbered_without_gaps() -> None:
    files = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [int(file.name[:4]) for file in files] == list(range(1, len(files) + 1))
