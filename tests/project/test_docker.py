"""The Dockerfile cannot be built in every place, so what it leans on is checked one by one."""

import fnmatch
import json
import re
import tomllib
from typing import Any

import pytest

from dspark.cli.commands import COMMANDS
from server.settings.loading import load_settings
from server.settings.schema import SERVING
from server.settings.sources import read_environment, read_flag
from tests.support.paths import ROOT
from tests.support.server.fakes import FakeEngine, app_with


def instructions() -> list[tuple[str, str]]:
    """(instruction, arguments) in order, continuation lines joined, comments gone."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#"))
    joined = re.sub(r"\\\n\s*", " ", text)
    return [(w[0], w[1]) for line in joined.splitlines() if (w := line.split(maxsplit=1))]


def arguments(name: str) -> list[str]:
    return [rest for instruction, rest in instructions() if instruction == name]


def environment() -> dict[str, str]:
    """ENV of the last stage."""
    last = " ".join(arguments("ENV")[-1:])
    return dict(word.split("=", 1) for word in last.split())


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_there_are_two_stages_and_the_second_takes_from_the_first() -> None:
    first, second = arguments("FROM")
    assert first.endswith(" AS build")
    assert " AS " not in second
    assert any(copy.startswith("--from=build /opt/venv ") for copy in arguments("COPY"))


def test_everything_that_is_copied_exists_and_is_not_ignored() -> None:
    ignored = [
        line for line in (ROOT / ".dockerignore").read_text().split("\n") if line and line[0] != "#"
    ]
    sources = [
        source
        for copy in arguments("COPY")
        if not copy.startswith("--from")
        for source in copy.split()[:-1]
    ]
    assert {"pyproject.toml", "constraints.txt", "server", "configs"} <= set(sources)
    for source in sources:
        assert (ROOT / source).exists(), source
        assert not any(fnmatch.fnmatch(source, pattern) for pattern in ignored), source


def test_every_package_that_is_installed_is_copied() -> None:
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found = tables["tool"]["setuptools"]["packages"]["find"]["include"]
    copied = {copy.split()[0] for copy in arguments("COPY")}
    assert {pattern.rstrip("*") for pattern in found} <= copied
    assert tables["project"]["readme"] in " ".join(arguments("COPY"))


def test_the_extras_exist() -> None:
    install = next(run for run in arguments("RUN") if "extras=" in run)
    named = set(re.findall(r"extras=([\w,]+)|\$extras,(\w+)", install))
    extras = {name for pair in named for group in pair for name in group.split(",") if name}
    assert extras == {"demo", "quantized", "triton"}
    assert extras <= set(project()["optional-dependencies"])


def test_torch_is_the_version_that_the_tests_ran_with() -> None:
    assert re.search(r"^torch==\d", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert any("sed -n 's/^torch==//p' constraints.txt" in run for run in arguments("RUN"))


def test_tritons_version_is_the_one_that_torch_for_cuda_asks_for() -> None:
    """Both are in one installation there. Another torch needs the triton of its own metadata."""
    pinned = dict(
        re.findall(r"^(torch|triton)==(\S+)", (ROOT / "constraints.txt").read_text(), re.M)
    )
    assert pinned == {"torch": "2.13.0", "triton": "3.7.1"}


def test_the_entry_point_is_a_script_of_the_project() -> None:
    (entry,) = json.loads(arguments("ENTRYPOINT")[0])
    assert entry in project()["scripts"]
    assert json.loads(arguments("CMD")[0]) == ["--help"]


def test_the_user_is_not_root_and_owns_the_cache() -> None:
    (user,) = arguments("USER")
    assert user != "root"
    assert any(f"useradd --create-home --uid 1000 {user}" in run for run in arguments("RUN"))
    assert arguments("VOLUME") == [environment()["DSPARK_CACHE"]]
    for name in ("HF_HOME", "TRITON_CACHE_DIR"):
        assert environment()[name].startswith(environment()["DSPARK_CACHE"])


def test_the_port_is_one_everywhere_and_open_to_the_outside() -> None:
    settings = load_settings(
        flags=[read_flag("-", "model.path", "m"), read_flag("-", "speculative.algorithm", "none")],
        environ=environment(),
    ).settings
    assert settings.server.host == "0.0.0.0"
    assert arguments("EXPOSE") == [str(settings.server.port)]
    assert read_environment(SERVING, environment(), []), "no setting is given"


def test_the_health_check_asks_a_route_that_needs_no_key() -> None:
    check = arguments("HEALTHCHECK")[0]
    program, flag, script = json.loads(check[check.index("[") :])
    assert (program, flag) == ("python", "-c")
    compile(script, "HEALTHCHECK", "exec")
    assert "/health" in script
    paths = app_with(FakeEngine()).openapi()["paths"]
    assert "/health" in paths
    named = set(re.findall(r"os\.environ\['(\w+)'\]", script))
    assert named
    assert named <= set(environment())


@pytest.mark.parametrize(("certificate", "scheme"), [(None, "http"), ("own.pem", "https")])
def test_the_health_check_goes_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, certificate: str | None, scheme: str
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("urllib.request.urlopen", lambda url, **_: asked.append(url))
    monkeypatch.setenv("DSPARK__SERVER__PORT", "8123")
    if certificate is not None:
        monkeypatch.setenv("DSPARK__SERVER__SSL_CERTFILE", certificate)
    check = arguments("HEALTHCHECK")[0]
    exec(json.loads(check[check.index("[") :])[2], {})
    assert asked == [f"{scheme}://127.0.0.1:8123/health"]


def test_the_commands_in_its_comments_exist() -> None:
    text = (ROOT / "Dockerfile").read_text()
    command, config = re.findall(r"dspark (\w+) --config (\S+)", text)[0]
    assert command in [c.name for c in COMMANDS]
    assert (ROOT / config).is_file()
    declared = {argument.partition("=")[0] for argument in arguments("ARG")}
    assert set(re.findall(r"--build-arg (\w+)", text)) <= declared


@pytest.mark.parametrize("name", ["Dockerfile", ".dockerignore"])
def test_no_registry_is_written_down(name: str) -> None:
    hosts = re.findall(r"https?://([^/:\s\"']+)", (ROOT / name).read_text())
    assert set(hosts) <= {"127.0.0.1"}
