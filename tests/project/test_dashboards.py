"""deploy/ loads where it is used, and names only metrics that the server exports."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from dspark.cli.main import main
from engine import EngineSnapshot
from tests.server.conftest import Connect, connect  # noqa: F401
from tests.support.paths import ROOT
from tests.support.server.fakes import FakeEngine

DEPLOY = ROOT / "deploy"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "dspark.json").read_text())
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]


def expressions() -> list[str]:
    rules = [
        rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
    ]
    targets = [target for panel in PANELS for target in panel["targets"]]
    return [each["expr"] for each in (*rules, *targets)]


def test_every_metric_of_a_panel_or_an_alert_is_exported(connect: Connect) -> None:  # noqa: F811
    engine = FakeEngine()
    engine.state = EngineSnapshot(
        accepted_per_position=(1,), finished={"stop": 1}, stage_seconds={"draft": 1.0}
    )
    client = connect(engine)
    client.post("/generate", json={"text": "x"})
    families = list(text_string_to_metric_families(client.get("/metrics").text))
    exported = {sample.name: set(sample.labels) for family in families for sample in family.samples}
    named = [
        (name, labels)
        for expression in expressions()
        for name, labels in re.findall(r"(dspark:\w+)(?:\{([^}]*)\})?", expression)
    ]
    assert len({name for name, _ in named}) >= 20
    for name, labels in named:
        assert name in exported, name
        assert set(re.findall(r"(\w+)=", labels)) <= exported[name] | {"instance"}, name


def test_the_dashboard_has_what_grafana_requires() -> None:
    assert {"uid", "title", "schemaVersion", "panels", "templating", "time"} <= set(DASHBOARD)
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        assert {"type", "title", "gridPos", "targets", "datasource", "fieldConfig"} <= set(panel)
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, f"{panel['title']} covers another panel"
        taken |= cells
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_variables_of_the_dashboard_are_defined() -> None:
    defined = {each["name"] for each in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(DASHBOARD)))
    assert used == defined


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
@pytest.mark.parametrize(
    "check", [("config", "prometheus.yml"), ("rules", "alerts.yml")], ids=lambda c: c[0]
)
def test_promtool_accepts_the_files(check: tuple[str, str]) -> None:
    kind, file = check
    command = ["promtool", "check", kind, str(ALERTS.with_name(file))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
def test_promtool_accepts_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{i}", "expr": re.sub(r"\$__rate_interval", "1m", expression)}
        for i, expression in enumerate(expressions())
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_compose_file_mounts_what_exists() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    mounted = [m.split(":")[0] for s in services.values() for m in s.get("volumes", ())]
    folders = [path for path in mounted if path.startswith(".")]
    assert len(folders) == 3
    assert all((DEPLOY / path).exists() for path in folders)
    assert (DEPLOY / services["server"]["build"] / "Dockerfile").exists()


def test_the_services_of_the_compose_file_reach_each_other() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    ports = {name: {p.split(":")[-1] for p in s["ports"]} for name, s in services.items()}
    (scraped,) = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())[
        "scrape_configs"
    ]
    targets = [t for group in scraped["static_configs"] for t in group["targets"]]
    sources = [
        source["url"].removeprefix("http://")
        for file in (DEPLOY / "grafana" / "provisioning" / "datasources").iterdir()
        for source in yaml.safe_load(file.read_text())["datasources"]
    ]
    assert targets
    assert sources
    for address in (*targets, *sources):
        name, _, port = address.partition(":")
        assert port in ports[name], address
    published = [p for s in services.values() for p in s["ports"]]
    assert all(p.startswith("127.0.0.1:") for p in published)


def test_the_command_of_the_compose_file_is_valid(capsys: pytest.CaptureFixture[str]) -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert main([*services["server"]["command"], "--check"]) == 0
    assert capsys.readouterr().out == "the settings are valid\n"
