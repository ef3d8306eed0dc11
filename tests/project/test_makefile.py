"""`make setup` installs once, and again where the last time failed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")

NO_NETWORK = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}


def make(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run make in the checkout, without the variables of a make around this test."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", *words],
        cwd=ROOT,
        env={**outside, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_setup_without_a_network_fails_with_the_words_of_pip_and_is_done_again(
    tmp_path: Path,
) -> None:
    for _ in range(2):
        done = make("setup", f"VENV={tmp_path / 'venv'}", **NO_NETWORK)
        assert done.returncode != 0
        assert "installing into" in done.stdout
        assert "ERROR: " in done.stderr
        assert "torch==" in done.stderr
        assert not (tmp_path / "venv" / ".installed").exists()


def test_a_setup_that_is_done_needs_nothing_more(tmp_path: Path) -> None:
    (tmp_path / ".installed").touch()
    done = make("setup", f"VENV={tmp_path}", **NO_NETWORK)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".installed"]


def test_serve_takes_flags_for_the_server(tmp_path: Path) -> None:
    (tmp_path / ".installed").touch()
    done = make("--dry-run", "serve", f"VENV={tmp_path}", "ARGS=--port 8001")
    assert done.stdout == f"{tmp_path}/bin/dspark serve --config configs/demo.yaml --port 8001\n"


@pytest.mark.parametrize("has_browser", [False, True])
def test_the_page_is_tested_with_a_browser_that_is_installed_if_missing(
    has_browser: bool, tmp_path: Path
) -> None:
    venv, tools, log = tmp_path / "venv", tmp_path / "tools", tmp_path / "log"
    (venv / "bin").mkdir(parents=True)
    for stamp in ("", "-for-development", "-for-tests", "-for-the-page"):
        (venv / f".installed{stamp}").touch()
    program(venv / "bin" / "pytest", f'echo "pytest $CHROMIUM $*" >> {log}')
    tools.mkdir()
    for name in ("make", "sh", "chmod"):
        (tools / name).symlink_to(str(shutil.which(name)))
    browser = tools / "chromium"
    new = f"echo '#!/bin/sh' > {browser} && chmod +x {browser}"
    program(tools / "apt-get", f'echo "apt-get $*" >> {log}; [ "$1" != install ] || {{ {new}; }}')
    if has_browser:
        program(browser, "")
    done = make("test-page", f"VENV={venv}", PATH=str(tools), **NO_NETWORK)
    assert done.returncode == 0, done.stderr
    installs = [] if has_browser else ["apt-get update -q", "apt-get install -qy chromium"]
    tests = f"pytest {browser} -m page tests/server/playground"
    assert log.read_text().splitlines() == [*installs, tests]


def program(file: Path, script: str) -> None:
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def test_help_lists_the_targets() -> None:
    out = make("help").stdout
    for target in ("setup", "serve", "test", "check", "bench"):
        assert f"\n{target} " in f"\n{out}"
