"""The manifests of deploy/ name settings, routes and ports that exist."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from dspark.cli.main import command_parser, find_command
from dspark.deploy.arguments import settings_of
from server.settings.flags import settings_flags
from server.settings.loading import load_settings
from server.settings.schema import SERVING
from server.settings.sources import read_environment
from tests.support.paths import ROOT
from tests.support.server.fakes import FakeEngine, app_with

DEPLOY = ROOT / "deploy"
DEPLOYMENT, SERVICE = yaml.safe_load_all((DEPLOY / "kubernetes" / "deployment.yaml").read_text())
RAY: dict[str, Any] = yaml.safe_load((DEPLOY / "ray" / "rayservice.yaml").read_text())
POD = DEPLOYMENT["spec"]["template"]["spec"]
CONTAINER = POD["containers"][0]


def routes() -> set[str]:
    return set(app_with(FakeEngine()).openapi()["paths"])


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, str]:
    """Files in place of those that the manifests mount, by their name there."""
    for name in ("api", "admin"):
        (tmp_path / name).write_text("secret\n")
    return {f"/keys/{name}": str(tmp_path / name) for name in ("api", "admin")}


def test_the_pod_runs_a_command_with_settings_that_load(keys: dict[str, str]) -> None:
    variables = {e["name"]: keys.get(e["value"], e["value"]) for e in CONTAINER["env"]}
    faults: list[Any] = []
    read_environment(SERVING, variables, faults)
    assert faults == []
    command = find_command(CONTAINER["args"])
    args = command_parser(command).parse_strictly(CONTAINER["args"][1:])
    config = ROOT / "configs" / f"{args.config}.yaml"
    settings = load_settings(config, flags=settings_flags(args), environ=variables).settings
    assert settings.server.host == "0.0.0.0"
    assert settings.server.port == CONTAINER["ports"][0]["containerPort"]
    grace, wait = POD["terminationGracePeriodSeconds"], CONTAINER["lifecycle"]["preStop"]
    assert grace > settings.server.shutdown_timeout_s + int(wait["exec"]["command"][1])


def test_probes_and_the_service_name_routes_and_ports_that_exist() -> None:
    port = CONTAINER["ports"][0]
    for probe in (CONTAINER["startupProbe"], CONTAINER["livenessProbe"]):
        assert probe["httpGet"] == {"path": "/health", "port": port["name"]}
    ready = CONTAINER["readinessProbe"]["exec"]["command"][2]
    compile(ready, "probe", "exec")
    assert f":{port['containerPort']}/ready'" in ready
    assert {"/health", "/ready", "/metrics"} <= routes()
    assert SERVICE["spec"]["ports"][0]["targetPort"] == port["name"]
    annotations = DEPLOYMENT["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/path"] in routes()
    assert annotations["prometheus.io/port"] == str(port["containerPort"])


def test_mounted_volumes_are_defined() -> None:
    groups = RAY["spec"]["rayClusterConfig"]
    pods = [POD, groups["headGroupSpec"]["template"]["spec"]]
    pods += [group["template"]["spec"] for group in groups["workerGroupSpecs"]]
    for pod in pods:
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert {m["name"] for c in pod["containers"] for m in c["volumeMounts"]} <= volumes


def test_the_ray_service_builds_an_application_with_settings_that_load(
    keys: dict[str, str],
) -> None:
    serve = yaml.safe_load(RAY["spec"]["serveConfigV2"])
    (application,) = serve["applications"]
    assert application["import_path"] == "dspark.deploy:app"
    assert application["route_prefix"] == "/"
    args = application["args"]
    for name in ("api_key_file", "admin_api_key_file"):
        args["server"][name] = keys[args["server"][name]]
    settings = settings_of(args)
    groups = RAY["spec"]["rayClusterConfig"]
    (workers,) = groups["workerGroupSpecs"]
    (container,) = workers["template"]["spec"]["containers"]
    cores = int(container["resources"]["limits"]["cpu"])
    assert settings.deploy.num_cpus <= cores
    assert settings.deploy.replicas <= workers["replicas"] * cores // settings.deploy.num_cpus
    port = serve["http_options"]["port"]
    assert {"containerPort": port, "name": "serve"} in container["ports"]
    grace = workers["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > settings.server.shutdown_timeout_s


def test_the_ray_version_is_that_of_the_constraints() -> None:
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    version = RAY["spec"]["rayClusterConfig"]["rayVersion"]
    assert f"ray=={version}" in pins
    assert f"FROM rayproject/ray:{version}-py311" in (DEPLOY / "ray" / "Dockerfile").read_text()
