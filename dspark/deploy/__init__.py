"""Deploys replicas of the server on Ray Serve. Ray is imported where a deployment is built."""

from collections.abc import Mapping
from typing import Any

from dspark.deploy.arguments import settings_of


def app(args: Mapping[str, Any]) -> Any:
    """Build the application, for `serve run dspark.deploy:app` and `serve deploy`.

    args: `config`, a file or the name of a packaged config, and settings, nested or by dotted
    name. Raises SettingsError.
    """
    from dspark.deploy.application import build_application

    return build_application(settings_of(args))


__all__ = ["app"]
