"""Settings of a deployment, from the arguments of an application."""

import subprocess
import sys

import pytest

from dspark.deploy.arguments import check_update, settings_of
from server.settings.base import SettingsError
from tests.support.paths import ROOT

PLAIN = {"model": {"path": "some/target"}, "speculative": {"algorithm": "none"}}


def test_arguments_are_over_the_config() -> None:
    args = {"config": "demo", "deploy": {"replicas": 3}, "kv.page_size": 8, "device": "cpu"}
    settings = settings_of(args)
    assert (settings.deploy.replicas, settings.kv.page_size, settings.model.path) == (
        3,
        8,
        "demo:smollm2-135m-instruct",
    )


def test_a_deployment_needs_no_config_file() -> None:
    settings = settings_of({**PLAIN, "deploy": {"min_replicas": 1, "max_replicas": 4}})
    assert settings.deploy.max_replicas == 4


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            {"deploy": {"replica": 2}},
            "deploy.replica; did you mean deploy.replicas",
        ),
        ({"deploy": {"min_replicas": 2}}, "min_replicas is given without deploy.max_replicas"),
        ({"deploy": {"min_replicas": 3, "max_replicas": 2}}, "found 3; accepted: at most"),
        (
            {"deploy": {"replicas": 2, "min_replicas": 1, "max_replicas": 2}},
            "are both given; accepted: one of them",
        ),
        ({"server": {"body_timeout_s": 5}}, "server.body_timeout_s: found 5.0, but Ray Serve"),
        ({"config": 3}, "config: found 3; accepted: a file"),
    ],
)
def test_mistakes_are_named(args: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        settings_of({**PLAIN, **args})


def test_a_server_and_the_package_of_deployments_import_no_ray() -> None:
    code = (
        "import dspark.cli.commands.serve, dspark.cli.commands.deploy, dspark.deploy, server.app;"
        "import engine.build, sys;"
        "print([name for name in sys.modules if name.partition('.')[0] == 'ray'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_an_update_keeps_what_the_proxy_was_started_with() -> None:
    before = settings_of(PLAIN)
    server = before.server.model_copy(update={"port": 1 + before.server.port})
    with pytest.raises(SettingsError, match=r"server\.port: found \d+; accepted: \d+, until"):
        check_update(before, before.model_copy(update={"server": server}))
    check_update(before, before)
