"""An installation from a wheel, outside the checkout, serves and generates with the demo pair."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.support.live_server import serving
from tests.support.paths import ROOT

PACKAGES = ("dspark", "server", "engine", "draft", "kv_pool")
NO_CACHES = shutil.ignore_patterns("__pycache__", "*.egg-info")


@dataclass(frozen=True, slots=True)
class Installation:
    """A virtual environment with the wheel and the dependencies, and an empty folder."""

    bin: Path
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        outside = {"PYTHONPATH", "PYTHONHOME"}
        return {name: value for name, value in os.environ.items() if name not in outside}

    def run(self, *command: str) -> str:
        """Run a program of the environment in the folder; its output."""
        program, *arguments = command
        done = subprocess.run(
            [str(self.bin / program), *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: a build leaves files where it runs."""
    source = tmp_path_factory.mktemp("source")
    for name in (*PACKAGES, "configs"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=NO_CACHES)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run(
        [sys.executable, "-m", "pip", *build, "--wheel-dir", "dist", "."], cwd=source, check=True
    )
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """Dependencies are this environment's; its .pth files, and so the checkout, are not seen."""
    folder = tmp_path_factory.mktemp("installed")
    environment = folder / "venv"
    venv.create(environment, with_pip=False, symlinks=True)
    python = str(environment / "bin" / "python")
    own = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    dependencies = sysconfig.get_path("purelib")
    (Path(own.stdout.strip()) / "dependencies.pth").write_text(f"{dependencies}\n")
    install = ["--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    install += ["--ignore-installed", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True)
    empty = folder / "empty"
    empty.mkdir()
    return Installation(environment / "bin", empty)


def test_the_wheel_holds_every_file_of_the_packages_and_the_configs(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    ours = {
        str(file.relative_to(ROOT))
        for package in PACKAGES
        for file in (ROOT / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    ours |= {
        f"dspark/configs/{file.name}"
        for file in (ROOT / "configs").glob("*.yaml")
        if not file.name.startswith("train-")
    }
    assert {name for name in packed if ".dist-info/" not in name} == ours


def test_what_runs_there_is_the_wheels(installed: Installation) -> None:
    script = "import dspark, server, engine, draft; print(dspark.__file__, draft.__file__)"
    for file in installed.run("python", "-c", script).split():
        assert Path(file).is_relative_to(installed.bin.parent)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert installed.run("dspark", "--version") == f"{version}\n"


def test_the_packaged_configs_are_found_by_name(installed: Installation) -> None:
    check = ["serve", "--config", "demo", "--check"]
    assert installed.run("dspark", *check) == "the settings are valid\n"
    assert installed.run("python", "-m", "dspark", *check) == "the settings are valid\n"


@pytest.mark.weights
def test_generate_and_doctor_run_there_with_cpu_kernels(
    installed: Installation, demo_target: Path
) -> None:
    threads = ["--device.num_threads", "1"]
    generate = ["generate", "What is 2 + 3?", "--config", "demo", "--max-tokens", "8"]
    assert installed.run("dspark", *generate, *threads).strip()
    doctor = installed.run("dspark", "doctor", "--config", "demo", *threads)
    (kernels,) = [line for line in doctor.splitlines() if line.strip().startswith("draft passes")]
    assert "CPU kernels" in kernels


@pytest.mark.weights
def test_the_python_api_runs_there(installed: Installation, demo_target: Path) -> None:
    script = (
        "from dspark import LLM\n"
        "with LLM('demo', device={'num_threads': 1}) as llm:\n"
        "    params = {'max_tokens': 8, 'temperature': 0}\n"
        "    print(llm.generate('The capital of France is', params).text)\n"
        "    print(llm.generate('x', {'regex': '[ab]{3}', 'max_tokens': 8}).text)\n"
    )
    out = installed.run("python", "-c", script)
    assert "Paris" in out
    assert set(out.strip().splitlines()[-1]) <= {"a", "b"}


@pytest.mark.weights
def test_a_server_answers_there(installed: Installation, demo_target: Path, tmp_path: Path) -> None:
    with serving(
        "--device.num_threads",
        "1",
        log=tmp_path / "log",
        config="demo",
        program=[str(installed.bin / "dspark")],
        folder=installed.folder,
        environ=installed.environment,
    ) as url:
        body = {"text": "The capital of France is", "sampling_params": {"max_new_tokens": 8}}
        answer = httpx.post(f"{url}/generate", json=body, timeout=60)
        assert answer.json()["text"]
