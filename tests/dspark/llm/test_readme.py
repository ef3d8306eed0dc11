"""The lines that the README shows for Python run as they are."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT


@pytest.mark.weights
def test_the_lines_in_the_readme_print_an_answer_and_its_accept_length(
    demo_target: Path, tmp_path: Path
) -> None:
    text = (ROOT / "README.md").read_text()
    fences = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (lines,) = [fence for fence in fences if "from dspark import LLM" in fence]
    assert len([line for line in lines.splitlines() if line]) <= 5
    done = subprocess.run(
        [sys.executable, "-c", lines], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"Paris.* \d\.\d+\n$", done.stdout, re.DOTALL), done.stdout
