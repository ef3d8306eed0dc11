"""The signatures of FlashInfer's wrapper, from its source: without an import, which needs CUDA."""

import ast
import inspect
import json
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path

from packaging.requirements import Requirement

from tests.support.paths import ROOT

WRAPPER = "BatchPrefillWithPagedKVCacheWrapper"
METHODS = ("__init__", "plan", "run")
STORED = Path(__file__).with_name("flashinfer_signatures.json")  # of the lowest allowed version

Signatures = Mapping[str, inspect.Signature]


def allowed_versions() -> Requirement:
    """Return what pyproject allows."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (found,) = extras["optional-dependencies"]["cuda"]
    return Requirement(found)


def lowest_version() -> str:
    (lowest,) = [s.version for s in allowed_versions().specifier if s.operator == ">="]
    return lowest


def fetch_wheel(specifier: str, folder: Path) -> Path:
    """Download a wheel without its dependencies. Raises CalledProcessError."""
    options = ["--quiet", "--no-deps", "--only-binary=:all:", f"--dest={folder}"]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download"]
    subprocess.run([*pip, *options, f"flashinfer-python{specifier}"], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def declared_in(wheel: Path) -> dict[str, list[str]]:
    """Read each method's parameters: names, with "=" after optional ones, "*" before keywords."""
    with zipfile.ZipFile(wheel) as files:
        tree = ast.parse(files.read("flashinfer/prefill.py"))
    (wrapper,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == WRAPPER]
    # Of overloads, the last definition is the implementation.
    methods = {n.name: n.args for n in wrapper.body if isinstance(n, ast.FunctionDef)}
    return {name: _parameters(methods[name]) for name in METHODS}


def _parameters(args: ast.arguments) -> list[str]:
    positional = [a.arg for a in (*args.posonlyargs, *args.args)]
    first_optional = len(positional) - len(args.defaults)
    names = [n + "=" * (at >= first_optional) for at, n in enumerate(positional)]
    if args.vararg is not None:
        names.append(f"*{args.vararg.arg}")
    elif args.kwonlyargs:
        names.append("*")
    defaults = zip(args.kwonlyargs, args.kw_defaults, strict=True)
    names += [a.arg + "=" * (default is not None) for a, default in defaults]
    return names + ([f"**{args.kwarg.arg}"] if args.kwarg is not None else [])


def stored() -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads(STORED.read_text())
    return found


def signatures(declared: Mapping[str, list[str]]) -> Signatures:
    """Build signatures that calls can be bound against."""
    return {name: _signature(parameters) for name, parameters in declared.items()}


def _signature(declared: list[str]) -> inspect.Signature:
    kinds = inspect.Parameter
    kind = kinds.POSITIONAL_OR_KEYWORD
    parameters: list[inspect.Parameter] = []
    for name in declared:
        if name.startswith("**"):
            parameters.append(kinds(name[2:], kinds.VAR_KEYWORD))
        elif name.startswith("*"):
            kind = kinds.KEYWORD_ONLY
            if name != "*":
                parameters.append(kinds(name[1:], kinds.VAR_POSITIONAL))
        else:
            default = None if name.endswith("=") else kinds.empty
            parameters.append(kinds(name.rstrip("="), kind, default=default))
    return inspect.Signature(parameters)
