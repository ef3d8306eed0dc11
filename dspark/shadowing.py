"""Keeps files of the working directory from shadowing the project's packages.

A user's folder may hold a `server.py` or an `engine.py`. Python looks there first in a script, and
under `python -m`; the packages of those names would then not be found.
"""

import importlib.util
import sys
from pathlib import Path

_PACKAGES = ("server", "engine", "draft", "kv_pool")
_ROOT = Path(__file__).resolve().parents[1]  # where the packages lie, `dspark` among them


def guard_imports() -> None:
    """Take the working directory off the path of `python -m dspark`; refuse a shadowed package.

    Raises ImportError that names the shadowing file; ends a command with that one line.
    """
    program = Path(sys.argv[0]).name if getattr(sys, "argv", None) else ""
    if program == "-m" and not sys.flags.safe_path and Path(sys.path[0]).resolve() != _ROOT:
        del sys.path[0]  # python -m has put the working directory there
    for package in _PACKAGES:
        file = _shadowing_file(package)
        if file is None:
            continue
        message = (
            f"{file} hides the package '{package}' that dspark needs: rename it, or start Python "
            "in another folder"
        )
        if program in ("-m", "dspark"):
            raise SystemExit(f"dspark: {message}")
        raise ImportError(message)


def _shadowing_file(package: str) -> Path | None:
    """Return what `import package` would load in place of the project's own; None if nothing."""
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a module without a spec is in its place
        return Path(str(getattr(sys.modules[package], "__file__", package)))
    if spec is None:
        return None  # the import itself says that it is missing
    own = _ROOT / package
    places = [Path(place) for place in spec.submodule_search_locations or ()]
    if any(place.resolve() == own for place in places):
        return None
    if spec.origin is not None:
        return Path(spec.origin)
    return places[0] if places else own
