"""Serve a model with several replicas behind one address, on Ray Serve (extra [ray]).

Without deploy.address Ray runs on this machine until SIGTERM or SIGINT; SIGHUP reads the settings
again and replaces the replicas one by one. With deploy.address the deployment is left running on
that cluster, and the same command with other settings updates it."""

import argparse

from dspark.cli.startup import add_checking_flags, add_model_argument, settle
from dspark.deploy.arguments import check
from dspark.runtime.logs import configure_log
from dspark.runtime.service import keys_of
from server.http.tls import certificate_of
from server.settings.base import SettingsError
from server.settings.flags import add_settings_flags
from server.settings.schema import Settings

USAGE = "dspark deploy [MODEL] [--config FILE] [options]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_argument(parser)
    add_checking_flags(parser)
    add_settings_flags(parser, are_listed=True)


def run(args: argparse.Namespace) -> int:
    settings = settle(args)
    if settings is None:
        return 0
    configure_log(settings.observability.log_level)
    _check(settings)
    try:
        from dspark.deploy.cluster import deploy
    except ImportError as error:
        raise SettingsError(
            f"dspark deploy needs {error.name}, which is not installed; accepted: "
            "pip install -e '.[ray]'"
        ) from error

    def read_again() -> Settings:
        again = settle(args)
        assert again is not None
        _check(again)
        return again

    return deploy(settings, read_again)


def _check(settings: Settings) -> None:
    check(settings)
    keys_of(settings)
    certificate_of(settings)
