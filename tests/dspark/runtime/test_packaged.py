"""Configs and the demo draft are found by name, wherever the project lies."""

from pathlib import Path

import pytest

from dspark.runtime.models import resolved_engine_config
from dspark.runtime.packaged import DEMO_DRAFT, find_config, packaged_configs
from server.settings.loading import load_settings
from server.settings.schema import SettingsError
from tests.support.paths import PRETRAINED, ROOT


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_packaged_config_is_found_by_its_name(empty_folder: Path) -> None:
    found = find_config("demo")
    assert found.read_text() == (ROOT / "configs" / "demo.yaml").read_text()
    for name in packaged_configs():
        load_settings(find_config(Path(name)))


def test_an_existing_path_wins_over_a_packaged_name(empty_folder: Path) -> None:
    (empty_folder / "demo").write_text("model: {path: my/own}\nspeculative: {algorithm: none}\n")
    assert find_config("demo") == Path("demo")
    assert load_settings(find_config("demo")).settings.model.path == "my/own"


def test_a_folder_of_that_name_is_no_config(empty_folder: Path) -> None:
    (empty_folder / "demo").mkdir()
    assert find_config("demo").name == "demo.yaml"


def test_a_name_that_is_no_config_is_refused_with_the_accepted_ones(empty_folder: Path) -> None:
    with pytest.raises(SettingsError, match=r"config dem: found no such file; .* demo, gemma4-"):
        find_config("dem")


@pytest.mark.parametrize("path", ["no.yaml", "some/where"])
def test_a_path_is_never_taken_for_a_packaged_name(path: str, empty_folder: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        load_settings(find_config(path))


def test_training_configs_are_not_among_the_packaged_ones() -> None:
    assert "demo" in packaged_configs()
    assert not [name for name in packaged_configs() if name.startswith("train")]


@pytest.mark.weights
def test_the_demo_pairs_name_stands_for_both_folders(demo_target: Path, empty_folder: Path) -> None:
    settings = load_settings(find_config("demo")).settings
    assert settings.speculative.draft_model == settings.model.path
    config = resolved_engine_config(settings)
    assert config.target == str(demo_target)
    assert config.draft == str(DEMO_DRAFT)
    assert DEMO_DRAFT == PRETRAINED
