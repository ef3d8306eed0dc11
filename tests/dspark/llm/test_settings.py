"""Settings of an LLM: a config by path or name, and any setting as a keyword."""

from pathlib import Path
from typing import Any

import pytest

from dspark import LLM
from dspark.llm.settings import resolve_settings
from tests.support.paths import ROOT

PLAIN = {"model": "some/target", "speculative": {"algorithm": "none"}}


@pytest.mark.parametrize("config", ["demo", str(ROOT / "configs" / "demo.yaml")])
def test_a_config_is_a_path_or_a_packaged_name(config: str) -> None:
    settings = resolve_settings(config, {"page_size": 4})
    assert settings.model.path == "demo:smollm2-135m-instruct"
    assert settings.kv.page_size == 4


@pytest.mark.parametrize(
    "keywords",
    [
        {"kv": {"page_size": 32}},
        {"kv.page_size": 32},
        {"page_size": 32},
        {"kv": {"page_size": "32"}},
    ],
)
def test_a_setting_is_a_section_a_dotted_path_or_a_flags_name(keywords: dict[str, Any]) -> None:
    assert resolve_settings(None, {**PLAIN, **keywords}).kv.page_size == 32


def test_sections_may_be_nested_and_paths_may_be_path_objects(tmp_path: Path) -> None:
    keywords = {
        "model": {"path": tmp_path, "dtype": "float32"},
        "draft": "some/draft",
        "speculative": {"confidence": {"mode": "threshold"}},
        "device": "cpu",
    }
    settings = resolve_settings(None, keywords)
    assert (settings.model.path, settings.model.dtype) == (str(tmp_path), "float32")
    assert settings.speculative.draft_model == "some/draft"
    assert settings.speculative.confidence.mode == "threshold"
    assert settings.device.type == "cpu"


def test_keywords_win_over_the_environment_and_that_over_the_config(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DSPARK__KV__PAGE_SIZE", "8")
    monkeypatch.setenv("DSPARK__KV__MEMORY_GIB", "3")
    settings = resolve_settings("demo", {"kv.page_size": 4})
    assert (settings.kv.page_size, settings.kv.memory_gib) == (4, 3)
    assert settings.model.max_model_len == 2048


@pytest.mark.parametrize(
    ("config", "keywords", "message"),
    [
        (None, {}, "model.path is missing"),
        (None, {"model": "a/b"}, "speculative.draft_model is missing"),
        ("dem", {}, "config dem: found no such file; .* demo, "),
        ("some/model", {}, r"config: found some/model; .* LLM\(model=..., draft=...\)"),
        (None, {**PLAIN, "kv": {"page_size": 0}}, "kv.page_size: found '0'; accepted: an integer"),
        (None, {**PLAIN, "page_size": 0}, "page_size: kv.page_size: found '0'; accepted"),
        (None, {**PLAIN, "kv": {"pages": 3}}, "LLM: unknown setting kv.pages"),
        (None, {**PLAIN, "page_sice": 3}, "unknown setting page_sice; did you mean kv.page_size"),
        (None, {**PLAIN, "server": {"port": 3}}, "server.port: found a setting of the HTTP"),
        (
            None,
            {**PLAIN, "model": "/no/folder"},
            "model.path: found /no/folder, which is",
        ),
    ],
)
def test_what_is_not_accepted_is_a_value_error_with_the_settings_name(
    config: str | None, keywords: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        LLM(config, **keywords)
