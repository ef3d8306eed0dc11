"""Checks whether the model hub can be reached, before its client retries for a minute."""

import os
import socket
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from engine import LoadError

_PATIENCE_S = 1.5
_PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


def use_cache_if_offline(setting: str, path: str, revision: str | None) -> None:
    """Let the hub's client use its cache alone when the hub cannot be reached.

    path: a folder, which needs no hub, or a hub id. Behind a proxy nothing is checked. Raises
    LoadError for a model that is not in the cache either.
    """
    from huggingface_hub import constants, try_to_load_from_cache

    if Path(path).is_dir() or constants.HF_HUB_OFFLINE or any(map(os.environ.get, _PROXIES)):
        return
    hub = urlsplit(constants.ENDPOINT)
    port = hub.port or (80 if hub.scheme == "http" else 443)
    try:
        socket.create_connection((hub.hostname, port), timeout=_PATIENCE_S).close()
    except OSError as error:
        constants.HF_HUB_OFFLINE = True
        with suppress(ValueError):  # no hub id
            if isinstance(try_to_load_from_cache(path, "config.json", revision=revision), str):
                return
        raise LoadError(
            f"{setting}: {path!r} is neither a folder here nor in the model hub's cache, and the "
            f"hub at {hub.hostname} cannot be reached"
        ) from error
