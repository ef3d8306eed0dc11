"""Locates the cache folder of models and compiled kernels."""

from collections.abc import Mapping
from pathlib import Path


def default_cache_dir(environ: Mapping[str, str]) -> Path:
    """$DSPARK_CACHE, else $XDG_CACHE_HOME/dspark, else ~/.cache/dspark."""
    if environ.get("DSPARK_CACHE"):
        return Path(environ["DSPARK_CACHE"]).expanduser()
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]) / "dspark"
    return Path.home() / ".cache" / "dspark"
