"""`make setup`, with a fake pip."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PIP = """#!/bin/sh
case "$*" in *torch==*) exit 0 ;; *"pip --version"*) exit 0 ;; -c*) exit 0 ;; esac
echo "Obtaining file:///src"
echo "Requirement already satisfied: torch in /somewhere"
echo "Collecting transformers==5 (from dspark-server==0.1.0)"
echo "  Downloading transformers-5-py3-none-any.whl (11.7 MB)"
echo "Installing collected packages: transformers"
echo "$*" >&2
exit {status}
"""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def make_setup(folder: Path, *, status: int) -> subprocess.CompletedProcess[str]:
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.write_text(PIP.replace("{status}", str(status)))
    python.chmod(0o755)
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "setup", f"VENV={folder}"]
    return subprocess.run(
        command, cwd=ROOT, env=outside, capture_output=True, text=True, check=False
    )


def test_setup_shows_progress_in_short_lines(tmp_path: Path) -> None:
    done = make_setup(tmp_path, status=0)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-3:] == [
        "  Collecting transformers==5 (from dspark-server==0.1.0)",
        "  Downloading transformers-5-py3-none-any.whl (11.7 MB)",
        "  Installing collected packages: transformers",
    ]
    assert "--editable .[demo,quantized,dev]" in done.stderr
    assert (tmp_path / ".installed").exists()


def test_a_failed_setup_reports_the_error_and_runs_again(tmp_path: Path) -> None:
    done = make_setup(tmp_path, status=7)
    assert done.returncode != 0
    assert "Error 7" in done.stderr
    assert not (tmp_path / ".installed").exists()
