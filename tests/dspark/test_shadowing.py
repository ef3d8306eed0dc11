"""It works in a folder with files that are called like its packages, or names the file at fault."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from server.structured_output.sandbox import SandboxPool
from tests.support.paths import ROOT

PACKAGES = ("server", "engine", "draft", "kv_pool")
CHECK = ["serve", "--config", "demo", "--check"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder with files of the packages' names."""
    for name in PACKAGES:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name}.py of the user ran')\n")
    return tmp_path


def run(folder: Path, *command: str, path: str = str(ROOT)) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("is_module", [True, False])
def test_commands_work_there(is_module: bool, folder: Path) -> None:
    script = Path(sys.executable).with_name("dspark")
    command = [sys.executable, "-m", "dspark"] if is_module else [str(script)]
    done = run(folder, *command, *CHECK)
    assert (done.returncode, done.stdout, done.stderr) == (0, "the settings are valid\n", "")


def test_grammars_are_checked_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    pool = SandboxPool(timeout_s=30)
    assert "part" in pool.check({"kind": "regex", "text": "[ab]+"})


@pytest.mark.parametrize("name", PACKAGES)
def test_the_error_of_a_script_there_names_the_shadowing_file(name: str, tmp_path: Path) -> None:
    shadow = tmp_path / f"{name}.py"
    shadow.write_text("")
    (tmp_path / "script.py").write_text("from dspark import LLM\n")
    done = run(tmp_path, sys.executable, "script.py")
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert last == (
        f"ImportError: {shadow} hides the package '{name}' that dspark needs: rename it, or start "
        "Python in another folder"
    )


def test_the_error_names_a_script_with_such_a_name_itself(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text("from dspark import LLM\n")
    done = run(tmp_path, sys.executable, "server.py")
    assert f"ImportError: {tmp_path / 'server.py'} hides" in done.stderr


def test_a_module_that_is_loaded_already_is_named(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import sys, types; sys.modules['engine'] = types.ModuleType('engine'); import dspark\n"
    )
    done = run(tmp_path, sys.executable, "script.py")
    assert "ImportError: engine hides the package 'engine'" in done.stderr


def test_a_command_whose_path_holds_the_folder_says_so_in_one_line(folder: Path) -> None:
    for command in ([sys.executable, "-m", "dspark"], [sys.executable.replace("python", "dspark")]):
        if not Path(command[0]).exists():
            continue
        done = run(folder, *command, *CHECK, path=f"{folder}:{ROOT}")
        assert done.returncode == 1
        assert done.stderr.startswith(f"dspark: {folder / 'server.py'} hides the package 'server'")
        assert done.stderr.count("\n") == 1


def test_a_plain_folder_of_that_name_shadows_nothing(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    (tmp_path / "script.py").write_text("from dspark import LLM; print(LLM.__name__)\n")
    done = run(tmp_path, sys.executable, "script.py")
    assert done.stdout == "LLM\n", done.stderr
