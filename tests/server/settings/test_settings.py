"""Settings from file, environment and flags, and the refusal of everything else."""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from engine import EngineConfig
from server.settings.engine_config import to_engine_config
from server.settings.flags import Parser, add_settings_flags, settings_flags
from server.settings.loading import Resolved, load_settings
from server.settings.names import FLAG_ALIASES, PATH_ALIASES, SWITCHES
from server.settings.rendering import effective_yaml, public_values, value_at
from server.settings.schema import SERVING, Settings, SettingsError

PAIR = ["--model", "a/target", "--draft-model", "a/draft"]


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="dspark")
    add_settings_flags(parser)
    return parser.parse_strictly(argv)


def load(
    argv: Sequence[str] = (), *, config: Path | None = None, environ: Mapping[str, str] = {}
) -> Settings:
    return resolve(argv, config=config, environ=environ).settings


def resolve(
    argv: Sequence[str] = (), *, config: Path | None = None, environ: Mapping[str, str] = {}
) -> Resolved:
    return load_settings(config, flags=settings_flags(parse(argv)), environ=environ)


def refusal(
    argv: Sequence[str] = (), *, config: Path | None = None, environ: Mapping[str, str] = {}
) -> str:
    """The first line of it."""
    return refusals(argv, config=config, environ=environ)[0]


def refusals(
    argv: Sequence[str] = (), *, config: Path | None = None, environ: Mapping[str, str] = {}
) -> list[str]:
    with pytest.raises(SettingsError) as error:
        load(argv, config=config, environ=environ)
    assert not any("\n" in line for line in error.value.lines)
    return list(error.value.lines)


def write(folder: Path, text: str) -> Path:
    file = folder / "config.yaml"
    file.write_text(text)
    return file


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    config = write(tmp_path, "server: {port: 1001, host: file}\nkv: {page_size: 4}\n")
    environ = {"DSPARK__SERVER__PORT": "1002", "DSPARK__KV__PAGE_SIZE": "5", "HOME": "/root"}
    settings = load([*PAIR, "--server.port", "1003"], config=config, environ=environ)
    assert settings.server.port == 1003
    assert settings.kv.page_size == 5
    assert settings.server.host == "file"
    assert settings.scheduler.prefill_chunk_tokens == 512


@pytest.mark.parametrize(
    ("flags", "environ", "message"),
    [
        (["--port", "1", "--port=1"], {}, "--port: server.port is given twice; first at --port"),
        (
            ["--port", "1", "--server.port", "2"],
            {},
            "--server.port: server.port is given twice; first at --port",
        ),
        (
            ["--set", "SERVER.port=3", "--port", "1"],
            {},
            "--port: server.port is given twice; first at --set SERVER.port",
        ),
        (
            ["--disable-prefix-cache", "--kv.prefix-cache", "true"],
            {},
            "--kv.prefix-cache: kv.prefix_cache is given twice; first at --disable-prefix-cache",
        ),
        (
            ["--model", "b"],
            {},
            "--model: model.path is given twice; first at --model",
        ),
        (
            [],
            {"DSPARK__DEVICE": "cpu", "DSPARK__device__TYPE": "cpu"},
            "DSPARK__device__TYPE: device.type is given twice; first at DSPARK__DEVICE",
        ),
    ],
)
def test_a_setting_given_twice_is_refused_with_both_places(
    flags: list[str], environ: dict[str, str], message: str
) -> None:
    assert refusals([*PAIR, *flags], environ=environ) == [message]


def test_a_flag_that_is_no_setting_may_be_given_once() -> None:
    with pytest.raises(SettingsError, match=r"^dspark: --config: given twice; first as --config"):
        parse(["--config", "a", "--config=b"])


@pytest.mark.parametrize(("path", "flags"), FLAG_ALIASES.items())
def test_a_flag_of_other_servers_means_the_dotted_flag(path: str, flags: tuple[str, ...]) -> None:
    for flag in flags:
        (assignment,) = settings_flags(parse([flag, "7"]))
        assert (assignment.path, assignment.value) == (path, "7")


@pytest.mark.parametrize(("switch", "meaning"), SWITCHES.items())
def test_a_switch_gives_its_setting_a_value(switch: str, meaning: tuple[str, str]) -> None:
    path, value = meaning
    assert value_at(load([*PAIR, switch]), path) == {"true": True, "false": False}.get(value, value)


def test_aliases_and_switches_lead_to_settings_that_exist() -> None:
    targets = {*FLAG_ALIASES, *PATH_ALIASES.values(), *(path for path, _ in SWITCHES.values())}
    assert targets <= set(SERVING.settings)


def test_dashes_and_underscores_are_one_in_files_and_flags(tmp_path: Path) -> None:
    config = write(tmp_path, "kv: {page-size: 4}\nscheduler: {max-running-requests: 3}\n")
    settings = load([*PAIR, "--kv.num-pages", "9"], config=config)
    assert (settings.kv.page_size, settings.kv.num_pages) == (4, 9)
    assert settings.scheduler.max_running_requests == 3


def test_on_and_off_are_texts_in_yaml(tmp_path: Path) -> None:
    config = write(
        tmp_path,
        "speculative: {stacked_context_kv: on, confidence: {mode: off}, algorithm: DSpark}\n",
    )
    speculative = load(PAIR, config=config).speculative
    assert speculative.stacked_context_kv == "on"
    assert speculative.confidence.mode == "off"
    assert speculative.algorithm == "dspark"


def test_a_device_needs_no_section(tmp_path: Path) -> None:
    assert load(PAIR, config=write(tmp_path, "device: cpu\n")).device.type == "cpu"
    assert load(PAIR, config=write(tmp_path, "device: {type: cpu, num_threads: 2}\n")).device == (
        load([*PAIR, "--device", "cpu", "--device.num_threads", "2"]).device
    )
    assert load(PAIR, environ={"DSPARK__DEVICE": "cpu"}).device.type == "cpu"


def test_an_empty_file_and_empty_sections_change_nothing(tmp_path: Path) -> None:
    assert load(PAIR, config=write(tmp_path, "")) == load(PAIR)
    assert load(PAIR, config=write(tmp_path, "kv:\nserver:\ndevice:\n")) == load(PAIR)


def test_null_is_understood_in_flags_where_a_setting_takes_it(tmp_path: Path) -> None:
    config = write(tmp_path, "server: {api_key: secret}\n")
    assert load([*PAIR, "--server.api_key", "null"], config=config).server.api_key is None


# -- folders ---------------------------------------------------------------------------------


def test_a_relative_folder_in_a_file_counts_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "models" / "draft").mkdir(parents=True)
    (tmp_path / "configs").mkdir()
    config = write(
        tmp_path / "configs",
        "model: {path: a/hub-id}\nspeculative: {draft_model: ../models/draft}\n",
    )
    settings = load(config=config)
    assert settings.speculative.draft_model == str(tmp_path / "models" / "draft")
    assert settings.model.path == "a/hub-id"


def test_a_relative_folder_in_a_flag_counts_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "draft").mkdir()
    monkeypatch.chdir(tmp_path)
    environ = {"DSPARK__SPECULATIVE__DRAFT_MODEL": "./draft"}
    for settings in (
        load([*PAIR[:2], "--draft-model", "./draft"]),
        load(PAIR[:2], environ=environ),
    ):
        assert settings.speculative.draft_model == str(tmp_path / "draft")


def test_a_folder_that_is_not_there_is_named_with_its_line(tmp_path: Path) -> None:
    config = write(tmp_path, "model:\n  path: ./nowhere\nspeculative: {algorithm: none}\n")
    message = refusal(config=config)
    assert message.startswith(f"{config}:2: model.path: found {tmp_path / 'nowhere'}, which is no")
    assert "accepted: a folder with config.json (./ and ../ count from the YAML file" in message


def test_a_file_that_is_missing_beside_a_copied_config_is_named_with_its_folder(
    tmp_path: Path,
) -> None:
    (tmp_path / "copy").mkdir()
    config = write(tmp_path / "copy", "server:\n  api_key_file: ../keys.txt\n")
    assert refusal(PAIR, config=config) == (
        f"{config}:2: server.api_key_file: found {tmp_path / 'keys.txt'}, which is no file; "
        "accepted: a file or null (./ and ../ count from the YAML file that names the path, other "
        "relative paths from the working directory)"
    )


@pytest.mark.parametrize("name", ["Qwen/Qw en", "a/b/c", "owner/", "models\\a", "-draft"])
def test_an_impossible_hub_id_is_refused_without_a_request_to_a_hub(
    tmp_path: Path, name: str
) -> None:
    config = write(tmp_path, f"model:\n  path: '{name}'\n")
    message = refusal(PAIR[2:], config=config)
    assert message.startswith(
        f"{config}:2: model.path: found {name}, which is no folder and no hub id; accepted: "
    )
    assert message.endswith(", or a hub id such as name or owner/name")
    draft = refusal([*PAIR[:2], f"--draft-model={name}"])
    assert draft.startswith(f"--draft-model: speculative.draft_model: found {name}, which is no")


def test_a_folder_of_any_name_can_be_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a" / "b" / "my model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    settings = load(["--model", "a/b/my model", "--speculative.algorithm", "none"])
    assert settings.model.path == "a/b/my model"


def test_a_file_that_is_not_there_is_named() -> None:
    message = refusal([*PAIR, "--chat-template", "./no.jinja"])
    assert message.startswith("--chat-template: model.chat_template: found ")


def test_only_the_demo_target_that_exists_can_be_named() -> None:
    demo = ["--model", "demo:smollm2-135m-instruct", "--speculative-algorithm", "none"]
    assert load(demo).model.path == "demo:smollm2-135m-instruct"
    message = refusal([*PAIR[2:], "--model", "demo:other"])
    assert message.endswith("found demo:other; accepted: demo:smollm2-135m-instruct")


# -- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--kv.pagesize", "3"], "unknown flag --kv.pagesize; did you mean --kv.page_size?"),
        (["--max-runing-requests", "3"], "did you mean --max-running-requests?"),
        (["--set", "kv.pgsize=3"], "unknown setting kv.pgsize; did you mean kv.page_size?"),
        (["--set", "port=3"], "unknown setting port; did you mean server.port?"),
        (["--set", "kv=3"], "unknown setting kv; did you mean kv.page_size?"),
        (["--kv", "3"], "unknown flag --kv; did you mean --kv.page_size?"),
        (["--set", "kv.page_size"], "--set: found kv.page_size; accepted: NAME=VALUE"),
        (["--zzz", "3"], "unknown flag --zzz; accepted: see dspark --help"),
        (["--kv.page_size"], "expected one argument"),
        (["--server.queue_timeout_s", "1"], "unknown flag --server.queue_timeout_s"),
        (["--kv.page_size", "0"], "--kv.page_size: found '0'; accepted: an integer"),
        (["--kv.page_size", "x"], "found 'x'; accepted: an integer, at least 1, at most 1024"),
        (["--port", "65536"], "--port: server.port: found '65536'; accepted: an integer, at le"),
        (["--kv.page-size", "0"], "--kv.page-size: found '0'; accepted: an integer"),
        (["--set", "kv.page-size=0"], "--set kv.page-size: found '0'; accepted: an integer"),
        (["--dtype", "int3"], "found 'int3'; accepted: auto, float32, bfloat16, float16"),
        (["--mem-fraction", "1.5"], "accepted: a number, above 0, below 1"),
        (["--kv.memory_gib", "nan"], "found 'nan'; accepted: a number, above 0"),
        (["--speculative.num_draft_tokens", "0"], "accepted: auto or an integer, at least 1"),
        (["--confidence-mode", "always"], "accepted: auto, schedule, threshold, off"),
        (
            ["--confidence-mode", "schedule", "--speculative.draft_budget", "always"],
            "speculative.confidence.mode: found schedule with speculative.draft_budget always; "
            "accepted: auto, threshold, off",
        ),
        (["--confidence-threshold", "0"], "accepted: a number, above 0, at most 1"),
        (
            ["--model", ""],
            "--model: model.path: found ''; accepted: a folder, a GGUF file or a hub id",
        ),
        (["--api-key", "k", "--api-key-file", __file__], "both given; accepted: one of them"),
    ],
)
def test_a_bad_flag_is_refused_with_what_is_accepted(argv: list[str], message: str) -> None:
    with pytest.raises(SettingsError) as error:
        load([*(PAIR[2:] if "--model" in argv else PAIR), *argv])
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kv:\n  page_sise: 3\n", ":2: unknown setting kv.page_sise; did you mean kv.page_size?"),
        ("kvv: {page_size: 3}\n", ":1: unknown setting kvv.page_size; did you mean kv.page_size?"),
        ("\nport: 8000\n", ":2: unknown setting port; did you mean server.port?"),
        ("kv: 3\n", ":1: kv: found '3'; accepted: a mapping of settings"),
        ("- 1\n- 2\n", ":1: the file: found ['1', '2']; accepted: a mapping of settings"),
        ("kv: {page_size: [1, 2]}\n", ":1: kv.page_size: found ['1', '2']; accepted: an integer"),
        ("kv: {page_size: true}\n", ":1: kv.page_size: found 'true'; accepted: an integer"),
        ("kv: {page_size: {a: 1}}\n", ":1: kv.page_size: found {'a': '1'}; accepted: an integer"),
        (
            "model: {path: [3]}\n",
            ":1: model.path: found ['3']; accepted: a folder, a GGUF file or a hub id",
        ),
        (
            "model: {path: }\n",
            ":1: model.path: found null; accepted: a folder, a GGUF file or a hub id",
        ),
        ("model: {path: a\nfoo", ":2: not YAML: expected ',' or '}'"),
        ("a: !!python/object:os.system {}\n", ":1: not YAML: found the tag"),
        ("a: 1\n---\nb: 2\n", "not YAML: "),
        ("a: \x00\n", "not YAML: "),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    config = write(tmp_path, text)
    found = refusal(config=config)
    assert found.startswith(str(config))
    assert message in found


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    missing = tmp_path / "no.yaml"
    assert refusal(config=missing) == f"config file {missing}: No such file or directory"
    assert refusal(config=tmp_path) == f"config file {tmp_path}: Is a directory"
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\xff")
    assert refusal(config=binary).startswith(f"{binary}:1: found bytes that are not UTF-8")


def test_an_unknown_variable_is_refused_with_the_nearest() -> None:
    message = refusal(PAIR, environ={"DSPARK__KV__PAGESIZE": "3"})
    assert message == (
        "unknown environment variable DSPARK__KV__PAGESIZE; did you mean DSPARK__KV__PAGE_SIZE?"
    )


def test_a_bad_value_in_a_variable_names_the_variable() -> None:
    message = refusal(PAIR, environ={"DSPARK__SERVER__PORT": "http"})
    assert message.startswith("DSPARK__SERVER__PORT: server.port: found 'http'; accepted: ")


def test_the_first_line_about_a_missing_model_names_its_flag() -> None:
    message = refusal()
    assert message.startswith("model.path is missing; accepted: a folder, a GGUF file or a hub id")
    assert "--config FILE" in message


def test_speculation_without_a_draft_is_refused_with_both_alternatives() -> None:
    message = refusal(["--model", "a/b"])
    assert message.startswith("speculative.draft_model is missing")
    assert "speculative.algorithm none" in message
    assert load(["--model", "a/b", "--speculative.algorithm", "none"]).model.path == "a/b"


def test_every_mistake_of_a_command_line_has_a_line() -> None:
    port, page_size, model, draft = refusals(["--port", "x", "--kv.page_size", "y"])
    assert port.startswith("--port: server.port: found 'x'; accepted: ")
    assert page_size.startswith("--kv.page_size: found 'y'; accepted: ")
    assert model.startswith("model.path is missing")
    assert draft.startswith("speculative.draft_model is missing")


def test_every_mistake_of_a_file_has_a_line_in_the_files_order(tmp_path: Path) -> None:
    config = write(
        tmp_path,
        "model: {pth: a/b}\nserver:\n  prot: 1\n  port: http\n  host: a\n  host: b\n"
        "kv: 3\nspeculative: {draft_model: /no/such}\n",
    )
    environ = {"DSPARK__KV__NUM_PAGES": "many"}
    *of_file, variable, flag = refusals(["--dtype", "x"], config=config, environ=environ)
    assert variable.startswith("DSPARK__KV__NUM_PAGES: kv.num_pages: found 'many'; accepted: ")
    assert flag.startswith("--dtype: model.dtype: found 'x'; accepted: ")
    found = [line.removeprefix(f"{config}:") for line in of_file]
    assert [line[: line.index(";") if ";" in line else None] for line in found] == [
        "1: unknown setting model.pth",
        "3: unknown setting server.prot",
        "4: server.port: found 'http'",
        "6: server.host is given twice",
        "7: kv: found '3'",
        "8: speculative.draft_model: found /no/such, which is no folder",
    ]


def test_a_key_is_never_shown() -> None:
    assert "(hidden)" in refusal([*PAIR, "--api-key", ""])
    resolved = resolve([*PAIR, "--api-key", "hunter2"])
    assert "hunter2" not in effective_yaml(resolved)
    assert "hunter2" not in repr(resolved.settings)
    assert "hunter2" not in str(public_values(resolved.settings))


# -- what they become ----------------------------------------------------------------------


def test_the_printed_config_loads_to_the_same_settings(tmp_path: Path) -> None:
    resolved = resolve([*PAIR, "--disable-prefix-cache", "--device", "cuda", "--max-model-len=99"])
    config = write(tmp_path, effective_yaml(resolved))
    assert load(config=config) == resolved.settings
    assert "  prefix_cache: false  # --disable-prefix-cache\n" in config.read_text()


def test_public_values_are_plain_and_complete() -> None:
    values = public_values(load(PAIR))
    assert yaml.safe_load(yaml.safe_dump(values)) == values
    assert set(values) == set(Settings.model_fields)


@pytest.mark.parametrize(
    ("argv", "mode"),
    [
        ([], "auto"),
        (["--speculative.draft_budget", "always"], "off"),
        (["--speculative.draft_budget", "always", "--speculative.lookup", "on"], "on"),
        (["--speculative.lookup", "off"], "off"),
    ],
)
def test_rounds_of_whole_blocks_have_lookups_only_on_demand(argv: list[str], mode: str) -> None:
    assert to_engine_config(load([*PAIR, *argv])).lookup == mode


def test_defaults_are_the_engines_own() -> None:
    config = to_engine_config(load(["--model", "a/target", "--speculative-algorithm", "none"]))
    assert config == EngineConfig(target="a/target")


def test_every_field_of_the_engines_config_can_be_set() -> None:
    """Each flag below moves one field away from its default; together they move all of them."""
    argv = [
        *("--model", "t", "--revision", "r", "--dtype", "bfloat16", "--device", "cpu"),
        *("--trust-remote-code", "--max-model-len", "100", "--draft-model", "d"),
        *("--speculative.draft_revision", "s", "--speculative.num_draft_tokens", "3"),
        *("--stacked-context-kv", "off", "--page-size", "4", "--kv.num_pages", "8"),
        *("--kv.memory_gib", "2", "--mem-fraction", "0.5", "--disable-prefix-cache"),
        *("--attention-backend", "reference", "--max-num-seqs", "2"),
        *("--max-queued-requests", "0", "--chunked-prefill-size", "7"),
        *("--scheduling-policy", "priority", "--scheduler.priority_order", "lower_first"),
        *("--scheduler.priority_aging_s", "3"),
        *("--device.num_threads", "1", "--device.native_kernels", "off", "--device.graphs", "off"),
        *("--speculative.allow_other_target", "true", "--confidence-mode", "threshold"),
        *("--speculative.draft_dtype", "bfloat16", "--quantization", "int8"),
        *("--speculative.draft_budget", "always", "--speculative.lookup.mode", "on"),
        *("--speculative.lookup.max_tokens", "9", "--speculative.lookup.min_match", "3"),
        *("--speculative.lookup.shared", "on"),
    ]
    schedule = [*PAIR, "--confidence-mode", "schedule"]  # instead of a threshold
    configs = [to_engine_config(load(words)) for words in (argv, schedule)]
    default = EngineConfig(target="")
    same = [
        field.name
        for field in dataclasses.fields(EngineConfig)
        if all(getattr(c, field.name) == getattr(default, field.name) for c in configs)
    ]
    assert same == []


def test_plain_decoding_has_no_draft_even_if_one_is_named() -> None:
    config = to_engine_config(load([*PAIR, "--speculative-algorithm", "none"]))
    assert (config.draft, config.lookup) == (None, "off")


def test_lookups_need_no_draft_and_use_none() -> None:
    config = to_engine_config(load([*PAIR, "--speculative-algorithm", "lookup"]))
    assert (config.draft, config.lookup) == (None, "auto")
    off = ["--speculative.lookup.mode", "off"]
    message = refusal(["--model", "a/b", "--speculative-algorithm", "lookup", *off])
    assert "speculative.lookup.mode: found off" in message


@pytest.mark.parametrize(
    ("lookup", "mode"),
    [("on", "on"), ("off", "off"), ("auto", "auto"), ("{mode: on, max_tokens: 9}", "on")],
)
def test_the_mode_of_lookups_may_be_given_alone(tmp_path: Path, lookup: str, mode: str) -> None:
    config = write(tmp_path, f"speculative: {{lookup: {lookup}}}\n")
    assert load(PAIR, config=config).speculative.lookup.mode == mode


def test_the_mode_of_lookups_is_a_flag() -> None:
    assert load([*PAIR, "--speculative.lookup", "on"]).speculative.lookup.mode == "on"


def test_every_setting_is_described() -> None:
    for path, setting in SERVING.settings.items():
        assert (setting.field.description or "").endswith("."), path
        assert setting.accepted, path


@pytest.mark.parametrize(
    ("written", "port"),
    [("010", 10), ("1_000", 1000), ("0o10", None), ("0x10", None), ("1:30", None), ("1e3", None)],
)
def test_a_number_means_the_same_in_every_source(
    tmp_path: Path, written: str, port: int | None
) -> None:
    """As a decimal number, or nothing at all."""
    config = write(tmp_path, f"server:\n  port: {written}\n")
    environ = {"DSPARK__SERVER__PORT": written}
    flags = [*PAIR, "--port", written]
    if port is None:
        assert f"server.port: found '{written}'; accepted: an" in refusal(PAIR, config=config)
        assert f"server.port: found '{written}'; accepted: an" in refusal(PAIR, environ=environ)
        assert f"server.port: found '{written}'; accepted: an" in refusal(flags)
    else:
        assert load(PAIR, config=config).server.port == port
        assert load(PAIR, environ=environ).server.port == load(flags).server.port == port


def test_a_text_that_looks_like_a_number_is_a_text(tmp_path: Path) -> None:
    assert load([*PAIR, "--served-model-name", "010"]).model.served_name == "010"
    config = write(tmp_path, "model: {served_name: 010}\nserver: {api_key: 1234}\n")
    settings = load(PAIR, config=config)
    assert settings.model.served_name == "010"
    assert settings.server.api_key is not None


def test_numbers_with_a_fraction_are_read(tmp_path: Path) -> None:
    config = write(tmp_path, "server: {port: 9000, keepalive_s: 1.5e+1}\nkv: {memory_gib: .5}\n")
    settings = load(PAIR, config=config)
    assert (settings.server.port, settings.server.keepalive_s) == (9000, 15.0)
    assert settings.kv.memory_gib == 0.5


def test_several_values_are_a_list_in_the_file_and_one_text_in_a_flag(tmp_path: Path) -> None:
    config = write(tmp_path, "server:\n  cors_origins: [https://a, https://b]\n  api_key: [x, y]\n")
    assert load(PAIR, config=config).server.cors_origins == ("https://a", "https://b")
    for text in ("https://c, https://d", "[https://c, 'https://d']"):
        flags = [*PAIR, "--cors-origins", text]
        assert load(flags, config=config).server.cors_origins == ("https://c", "https://d")
    shown = effective_yaml(resolve(PAIR, config=config))
    assert "  cors_origins: [https://a, https://b]  # " in shown
    assert "# api_key is set by" in shown


def test_a_key_that_is_no_key_is_not_shown(tmp_path: Path) -> None:
    config = write(tmp_path, "server: {api_key: [sesame, {a: b}]}\n")
    message = refusal(PAIR, config=config)
    assert "server.api_key: found (hidden)" in message
    assert "sesame" not in message
