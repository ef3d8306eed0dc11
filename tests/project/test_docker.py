"""The parts of the Dockerfile agree with the project; the image is not built here."""

import fnmatch
import json
import re
import tomllib
from typing import Any

import pytest

from dspark.cli.commands import COMMANDS
from dspark.runtime.packaged import find_config
from server.settings.loading import load_settings
from server.settings.schema import SERVING
from server.settings.sources import read_environment, read_flag
from tests.support.paths import ROOT
from tests.support.server.fakes import FakeEngine, app_with


def instructions() -> list[tuple[str, str]]:
    """Return (instruction, arguments) in order, without comments and continuation lines."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#"))
    joined = re.sub(r"\\\n\s*", " ", text)
    return [(w[0], w[1]) for line in joined.splitlines() if (w := line.split(maxsplit=1))]


def arguments(name: str) -> list[str]:
    return [rest for instruction, rest in instructions() if instruction == name]


def environment() -> dict[str, str]:
    """Return the ENV of the last stage."""
    last = " ".join(arguments("ENV")[-1:])
    return dict(word.split("=", 1) for word in last.split())


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


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
    assert {"pyproject.toml", "constraints.txt", "server"} <= set(sources)
    assert str((ROOT / "dspark" / "configs").resolve().relative_to(ROOT)) in sources  # it is a link
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


def test_the_port_is_the_same_everywhere_and_public() -> None:
    settings = load_settings(
        flags=[read_flag("-", "model.path", "m"), read_flag("-", "speculative.algorithm", "none")],
        environ=environment(),
    ).settings
    assert settings.server.host == "0.0.0.0"
    assert arguments("EXPOSE") == [str(settings.server.port)]
    assert read_environment(SERVING, environment(), []), "no setting is given"


def test_the_health_check_uses_a_public_route() -> None:
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
def test_the_health_check_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, certificate: str | None, scheme: str
) -> None:
    urls: list[str] = []
    monkeypatch.setattr("urllib.request.urlopen", lambda url, **_: urls.append(url))
    monkeypatch.setenv("DSPARK__SERVER__PORT", "8123")
    if certificate is not None:
        monkeypatch.setenv("DSPARK__SERVER__SSL_CERTFILE", certificate)
    check = arguments("HEALTHCHECK")[0]
    exec(json.loads(check[check.index("[") :])[2], {})
    assert urls == [f"{scheme}://127.0.0.1:8123/health"]


def test_the_commands_in_its_comments_exist() -> None:
    text = (ROOT / "Dockerfile").read_text()
    command, config = re.findall(r"dspark (\w+) --config (\S+)", text)[0]
    assert command in [c.name for c in COMMANDS]
    assert find_config(config).is_file()
    declared = {argument.partition("=")[0] for argument in arguments("ARG")}
    assert set(re.findall(r"--build-arg (\w+)", text)) <= declared


@pytest.mark.parametrize("name", ["Dockerfile", ".dockerignore"])
def test_no_host_name_is_fixed(name: str) -> None:
    hosts = re.findall(r"https?://([^/:\s\"']+)", (ROOT / name).read_text())
    assert set(hosts) <= {"127.0.0.1"}
