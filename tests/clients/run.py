"""Runs unmodified third-party clients against a server: `make test-clients`.

Each environment has its own requirements and virtual environment, in a cache folder, because the
clients' pins exclude each other. A client is a script that gets the server's URL and model name.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
_TIMEOUT_S = 600  # of one client


@dataclass(frozen=True)
class Environment:
    """Clients that fit into one virtual environment, and the packages whose versions count."""

    name: str
    scripts: tuple[str, ...]
    packages: tuple[str, ...]


ENVIRONMENTS = (
    Environment("official", ("openai_client", "anthropic_client"), ("openai", "anthropic")),
    Environment("langchain", ("langchain_client",), ("langchain-openai", "litellm", "openai")),
    Environment("instructor", ("instructor_client",), ("instructor", "openai")),
    Environment("pydantic-ai", ("pydantic_ai_client",), ("pydantic-ai-slim", "openai")),
    Environment("openai-agents", ("openai_agents_client",), ("openai-agents", "openai")),
    Environment("lm-eval", ("lm_eval_client",), ("lm_eval",)),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", help="a running server; without it the demo is served")
    parser.add_argument("--model", help="its model name; by default the first of /v1/models")
    parser.add_argument("--only", nargs="*", help="names of environments, and node")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="virtual environments")
    options = parser.parse_args()
    with _server(options.base_url) as url:
        model = options.model or _model(url)
        chosen = [e for e in ENVIRONMENTS if not options.only or e.name in options.only]
        results = [result for each in chosen for result in _run(each, options.cache, url, model)]
        if not options.only or "node" in options.only:
            results.append(_run_node(options.cache, url, model))
    return 0 if all(results) else 1


def default_cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "dspark" / "clients"


def _run(environment: Environment, cache: Path, url: str, model: str) -> Iterator[bool]:
    requirements = HERE / "requirements" / f"{environment.name}.txt"
    python = _virtual_environment(cache, environment.name, requirements)
    versions = ", ".join(_version(requirements.read_text(), p) for p in environment.packages)
    for script in environment.scripts:
        yield _report(script, versions, [str(python), "-P", str(HERE / f"{script}.py"), url, model])


def _version(requirements: str, package: str) -> str:
    found = re.search(rf"^{package}==(\S+)", requirements, re.MULTILINE)
    assert found, f"{package} is not pinned"
    return f"{package} {found[1]}"


def _virtual_environment(cache: Path, name: str, requirements: Path) -> Path:
    """Return its Python; install it unless the same requirements are installed already."""
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    folder = cache / f"{name}-{digest}"
    python = folder / "bin" / "python"
    if not (folder / ".installed").exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*install, "-r", str(requirements)], check=True)
        (folder / ".installed").touch()
    return python


def _run_node(cache: Path, url: str, model: str) -> bool:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        print("node_clients: skipped, there is no node")
        return True
    package = HERE / "node" / "package.json"
    folder = cache / f"node-{hashlib.sha256(package.read_bytes()).hexdigest()[:12]}"
    if not (folder / ".installed").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        shutil.copy(package, folder)
        subprocess.run([npm, "install", "--no-audit", "--no-fund"], cwd=folder, check=True)
        (folder / ".installed").touch()
    script = folder / "node_clients.mjs"
    shutil.copy(HERE / "node" / script.name, script)  # modules are found from the script's folder
    versions = ", ".join(re.findall(r'"([^"]+": "[\d.]+)"', package.read_text())).replace('":', "")
    return _report("node_clients", versions.replace('"', ""), [node, str(script), url, model])


def _report(name: str, versions: str, command: list[str]) -> bool:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {"OPENAI_API_KEY": "x", "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    verdict = "ok" if done.returncode == 0 else "FAILED"
    print(f"{name}: {verdict} ({versions})", flush=True)
    if done.returncode:
        print((done.stdout + done.stderr)[-3000:], flush=True)
    return done.returncode == 0


def _model(url: str) -> str:
    with urllib.request.urlopen(f"{url}/v1/models") as response:
        name: str = json.load(response)["data"][0]["id"]
        return name


@contextmanager
def _server(base_url: str | None) -> Iterator[str]:
    if base_url is not None:
        yield base_url.rstrip("/")
        return
    from tests.support.live_server import serving

    with (
        tempfile.TemporaryDirectory() as folder,
        serving(log=Path(folder) / "server.log") as url,
    ):
        yield url


if __name__ == "__main__":
    sys.exit(main())
