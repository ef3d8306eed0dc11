"""Refusals of files and values that are repeated, huge, deep or no text: one short line each."""

import time
import tracemalloc
from collections.abc import Mapping
from pathlib import Path

import pytest

from server.settings.loading import load_settings
from server.settings.schema import Settings, SettingsError
from server.settings.sources import read_flag
from server.settings.text_files import read_text

PAIR = "model: {path: a/target}\nspeculative: {draft_model: a/draft}\n"


def load(content: str | bytes, folder: Path, environ: Mapping[str, str] = {}) -> Settings:
    file = folder / "config.yaml"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return load_settings(file, environ=environ).settings


def refusal(content: str | bytes, folder: Path, environ: Mapping[str, str] = {}) -> str:
    with pytest.raises(SettingsError) as error:
        load(content, folder, environ)
    line = error.value.lines[0]
    assert len(line) < 600 + len(str(folder))
    assert line.isprintable()  # hence a single line
    return line.replace(f"{folder}/", "")


@pytest.mark.parametrize(
    ("first", "second", "name"),
    [
        ("kv: {mem_fraction: 0.5}", "kv.memory_fraction: 0.6", "kv.memory_fraction"),
        ("kv: {page_size: 4}", "kv.Page-Size: 8", "kv.page_size"),
        ("kv: {page_size: 4}", "kv: {num_pages: 8}", "kv"),
        ("kv: {page_size: 4}", "KV: {num_pages: 8}", "kv"),
        ("device: cpu", "device.type: cuda", "device.type"),
        ("device: cpu", "device: {type: cpu}", "device.type"),
        ("server.host: a", "server.host: a", "server.host"),
    ],
)
def test_a_setting_that_a_file_gives_twice_is_refused_with_both_lines(
    tmp_path: Path, first: str, second: str, name: str
) -> None:
    message = refusal(f"{PAIR}{first}\n\n{second}\n", tmp_path)
    assert message == f"config.yaml:5: {name} is given twice; first at config.yaml:3"


def test_a_key_that_is_repeated_within_a_section_is_refused_with_both_lines(
    tmp_path: Path,
) -> None:
    message = refusal(f"{PAIR}kv:\n  page_size: 3\n  page-size: 4\n", tmp_path)
    assert message == "config.yaml:5: kv.page_size is given twice; first at config.yaml:4"


def test_a_setting_that_the_environment_gives_twice_is_refused_with_both_variables(
    tmp_path: Path,
) -> None:
    environ = {"DSPARK__KV__PAGE_SIZE": "4", "DSPARK__KV__page_size": "4"}
    assert refusal(PAIR, tmp_path, environ) == (
        "DSPARK__KV__page_size: kv.page_size is given twice; first at DSPARK__KV__PAGE_SIZE"
    )


def test_aliases_of_single_values_work(tmp_path: Path) -> None:
    text = "model: {path: &name a/b}\nspeculative: {draft_model: *name}\n"
    assert load(text, tmp_path).speculative.draft_model == "a/b"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kv: &base {page_size: 3}\nserver:\n  <<: *base\n", ":3: not YAML: found *base, an alias"),
        ("kv:\n  <<: {page_size: 3}\n", ":2: unknown setting kv.<<.page_size"),
        ("a: &a [*a]\n", ":1: not YAML: found *a, an alias of a list or mapping; accepted: "),
        ("kv: {page_size: &a {b: *a}}\n", ":1: not YAML: found *a, an alias of a list"),
        ("a: *missing\n", ":1: not YAML: found undefined alias"),
        ("kv: !!int 3\n", ":1: not YAML: found the tag tag:yaml.org,2002:int; accepted: "),
    ],
)
def test_aliases_of_lists_merge_keys_and_tags_are_refused_by_name(
    tmp_path: Path, text: str, message: str
) -> None:
    assert message in refusal(text, tmp_path)


BOMB = "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [lol]\n" + BOMB,
        "a: " + "[" * 3000 + "]" * 3000,
        "[" * 100_000,
        "a: " + "{b: " * 3000 + "}" * 3000,
        "".join(f"{' ' * depth}a:\n" for depth in range(500)),
        "? " * 3000 + "a",
        "- " * 3000 + "a",
        "kv: {page_size: '" + "9" * 100_000 + "'}\n",
        "kv: {page_size: [" + "9, " * 20_000 + "]}\n",
        "model: {path: " + "a" * 100_000 + "}\n",
        "model: {chat_template: /" + "a" * 100_000 + "}\n",
        "? " + "a" * 100_000 + "\n: 1\n",
        "a: *" + "a" * 100_000 + "\n",
        "# " + "a" * (1 << 20),
    ],
    ids=lambda text: f"{text[:12]!r}",
)
def test_a_hostile_file_is_refused_soon_and_in_one_short_line(tmp_path: Path, text: str) -> None:
    begun = time.process_time()
    refusal(text, tmp_path)
    assert time.process_time() - begun < 3
    tracemalloc.start()
    try:
        refusal(text, tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100 << 20


def test_an_endless_file_is_refused() -> None:
    with pytest.raises(SettingsError, match="accepted: at most 131072 bytes"):
        load_settings(Path("/dev/zero"))


def test_a_long_name_in_a_flag_is_cut() -> None:
    with pytest.raises(SettingsError) as error:
        read_flag("--set", "a" * 100_000, "1")
    assert len(str(error.value)) < 300


# -- text ------------------------------------------------------------------------------------


def test_a_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    assert load(b"\xef\xbb\xbf" + PAIR.encode(), tmp_path).model.path == "a/target"
    file = tmp_path / "keys.txt"
    file.write_bytes(b"\xef\xbb\xbfone\r\ntwo\n")
    assert read_text(file) == "one\ntwo\n"


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_bytes_that_are_not_utf8_are_named_with_their_line(tmp_path: Path, mark: bytes) -> None:
    for wrong in (b"\xff", b"\xed\xa0\x80", "é".encode("latin-1")):
        message = refusal(mark + b"server:\n  host: " + wrong + b"\n", tmp_path)
        assert message == ("config.yaml:2: found bytes that are not UTF-8; accepted: text in UTF-8")


@pytest.mark.parametrize("value", ["\\ud800", "a\\0b"])
def test_text_that_no_file_name_can_hold_is_refused_with_its_line(
    tmp_path: Path, value: str
) -> None:
    for setting in ("model.served_name", "model.chat_template", "server.cors_origins"):
        message = refusal(f'{PAIR}\n{setting}: "./{value}"\n', tmp_path)
        assert message.startswith(f"config.yaml:4: {setting}: found ")
        assert message.endswith("accepted: Unicode text without NUL and lone surrogates")


def test_a_variable_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    environ = {"DSPARK__MODEL__SERVED_NAME": b"caf\xe9".decode(errors="surrogateescape")}
    message = refusal(PAIR, tmp_path, environ)
    assert message.startswith("DSPARK__MODEL__SERVED_NAME: model.served_name: found 'caf\\udce9'")
