"""`dspark`: help, refusals in one line with an exit code, and the commands over small fakes."""

import errno
import io
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import httpx
import pytest
from huggingface_hub import constants

from dspark.cli.commands import COMMANDS, generate, serve
from dspark.cli.main import main
from dspark.runtime import service
from dspark.runtime.progress import TerminalProgress
from engine import EngineConfig, LoadError
from server.http.auth import KeyRing
from server.settings.loading import load_settings
from server.settings.schema import SettingsError
from server.settings.sources import read_flag
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.server.fakes import FakeEngine, byte_codec, wait_until
from tests.support.server.tiny_pair import TinyPair

DEMO = str(ROOT / "configs" / "demo.yaml")
PLAIN = ["--model", "some/target", "--speculative-algorithm", "none"]


def use_fake_engine(monkeypatch: pytest.MonkeyPatch, engine: FakeEngine) -> list[EngineConfig]:
    """Commands get this engine and a tokenizer of bytes; the configs they asked with."""
    asked: list[EngineConfig] = []

    @contextmanager
    def running(config: EngineConfig) -> Iterator[FakeEngine]:
        asked.append(config)
        yield engine

    for module in (generate, serve):
        monkeypatch.setattr(module, "running_engine", running)
    for module in (generate, serve):
        monkeypatch.setattr(module, "load_text", lambda settings, config: byte_codec())
    monkeypatch.setattr(service, "model_sampling", lambda target, revision: {"top_k": 7})
    return asked


# -- the frame -------------------------------------------------------------------------------


def test_without_a_command_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for command in COMMANDS:
        assert f"  {command.name}" in out


@pytest.mark.parametrize("name", [command.name for command in COMMANDS])
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*name.split(), "--help"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(f"usage: dspark {name}")
    assert captured.err == ""


def test_every_command_limits_how_long_threads_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "to be restored")
        monkeypatch.delenv(name)
    assert main(["--version"]) == 0
    assert int(os.environ["GOMP_SPINCOUNT"]) > 0


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("argv", "code", "line"),
    [
        (["srve"], 2, "dspark: unknown command srve; did you mean serve?"),
        (["--versoin"], 2, "dspark: unknown command --versoin; did you mean --version?"),
        (["xyz"], 2, "dspark: unknown command xyz; accepted: serve, deploy,"),
        (["serve", "--speculative.algorithm", "none"], 2, "dspark: model.path is missing"),
        (
            ["serve", "--prot", "1"],
            2,
            "dspark serve: unknown flag --prot; did you mean --p",
        ),
        (
            ["serve", "a/b", "--tensor-parallel-size", "2"],
            2,
            "unknown flag --tensor-parallel-size; a server runs one model on one device; accepted: "
            "`dspark deploy`, which runs replicas",
        ),
        (["serve", "a/b", "c/d"], 2, "unrecognized arguments: c/d; see dspark serve --help"),
        (["serve", "--config", "no.yaml"], 2, "dspark: config file no.yaml: No such file"),
        (
            ["generate", "hi", "--max-tokens", "x"],
            2,
            "argument --max-tokens: found x; accepted: an integer, at least 1",
        ),
        (["generate", "hi", "--max-tokens", "0"], 2, "--max-tokens: found 0; accepted: an integer"),
        (["generate", "hi", "--seed", "x"], 2, "--seed: found x; accepted: an integer;"),
        (["generate", "hi", "--temperature=-1"], 2, "found -1; accepted: a number, at least 0"),
        (["bench", "--temperature", "nan"], 2, "found nan; accepted: a number, at least 0"),
        (["eval", "--temperatures", "warm"], 2, "found warm; accepted: a number, at least 0"),
        (["generate", " ", *PLAIN], 2, "dspark: PROMPT: found nothing"),
        (["fetch", "other"], 2, "dspark: NAME: found other; accepted: demo:smollm2-135m-instruct"),
        (["serve", *PLAIN, "--host", "192.0.2.1"], 1, "dspark: server.host: cannot listen on"),
    ],
)
def test_a_refusal_is_one_line_and_an_exit_code(
    argv: list[str], code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert line in captured.err
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("dspark")
    assert "dspark: dspark" not in captured.err


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/x/y"), "/x/y: Permission denied"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (OSError("a library's own words"), "a library's own words"),
    ],
)
def test_an_error_of_the_system_is_shown_without_its_number(
    error: OSError,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*args: object) -> None:
        raise error

    monkeypatch.setattr(serve, "run", fail)
    assert main(["serve", *PLAIN]) == 1
    assert capsys.readouterr().err == f"dspark: {line}\n"


@pytest.mark.parametrize(
    ("command", "setting"),
    [(["serve"], "server.api_key_file"), (["generate", "hi"], "model.chat_template")],
)
def test_a_file_that_is_no_text_is_named_with_its_setting(
    command: list[str], setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bytes"
    file.write_bytes(b"\xff\xfe\x00")
    assert main([*command, *PLAIN, f"--{setting}", str(file)]) == 2
    complaint = f"dspark: {setting}: {file}:1: found bytes that are not UTF-8; accepted: "
    assert capsys.readouterr().err.startswith(complaint)


def test_a_prompt_that_the_chat_template_refuses_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = TinyPair.write(tmp_path)
    template = tmp_path / "refusing.jinja"
    template.write_text("{{ raise_exception('no chats') }}")
    argv = ["generate", "hi", *pair.flags, "--chat-template", str(template)]
    assert main(argv) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("dspark: PROMPT: the chat template refuses these messages: ")
    assert line.endswith("; --raw goes without a template")


def test_a_chat_template_that_is_not_jinja_is_refused_at_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = TinyPair.write(tmp_path)
    template = tmp_path / "broken.jinja"
    template.write_bytes(b"\xef\xbb\xbf\n{% for m in messages %}{{ m.content")
    argv = ["generate", "hi", *pair.flags]
    assert main([*argv, "--chat-template", str(template)]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"dspark: model.chat_template: {template}: found unexpected end of ")
    assert "in line 2 of the chat template; accepted: Jinja" in line
    (pair.target / "chat_template.jinja").write_text("{% if")
    assert main(argv) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"dspark: model.path: {pair.target}: found ")


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("generation_config.json", '{"top_p": 0}', "'top_p' must be greater than 0; found 0"),
        ("generation_config.json", '{"top_p": "0.7"}', "'top_p' must be a number; found"),
        ("generation_config.json", "[]", "found []; accepted: a JSON object"),
        ("tokenizer_config.json", "[]", "found []; accepted: a JSON object"),
        ("tokenizer_config.json", "{", "found text that is not JSON: "),
        ("special_tokens_map.json", "[]", "found []; accepted: a JSON object"),
        ("config.json", "5", "found 5; accepted: a JSON object"),
        ("adapter_config.json", "{}", "an adapter; accepted: the folder of a whole model"),
    ],
)
def test_a_model_file_that_cannot_be_used_is_one_line_at_start(
    name: str, content: str, found: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = TinyPair.write(tmp_path)
    (pair.target / name).write_text(content)
    assert main(["serve", *pair.flags, "--port", str(free_port())]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("dspark: ")
    assert f"{pair.target / name}: {found}" in line.replace("json, an", "json: an")


@pytest.mark.parametrize(
    ("name", "field", "value", "complaint"),
    [
        ("config.json", "head_dim", -1, "found head_dim -1 in config.json; accepted: an integer"),
        ("config.json", "max_position_embeddings", 10**30, "found max_position_embeddings 1000"),
        ("config.json", "num_hidden_layers", 0, "found num_hidden_layers 0 in config.json"),
        ("config.json", "hidden_act", "x", "cannot load "),
        ("config.json", "num_key_value_heads", "x", "num_key_value_heads"),
        ("generation_config.json", "eos_token_id", "x", "found eos_token_id 'x' in the model's"),
        ("generation_config.json", "eos_token_id", [[1]], "found eos_token_id [[1]] in the"),
    ],
)
def test_a_value_of_a_model_file_that_cannot_be_used_is_one_line_at_start(
    name: str,
    field: str,
    value: object,
    complaint: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pair = TinyPair.write(tmp_path)
    file = pair.target / name
    file.write_text(json.dumps({**json.loads(file.read_text()), field: value}))
    assert main(["serve", *pair.flags, "--port", str(free_port())]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("dspark: model.path: ")
    assert complaint in line


def test_a_folder_that_is_no_model_is_named_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["generate", "hi", "--model", str(tmp_path), "--speculative-algorithm", "none"]
    assert main(argv) == 1
    assert f"model.path: found {tmp_path}, a folder without config.json" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["serve", "bench", "verify", "eval", "doctor"])
def test_a_model_is_named_without_a_flag(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "a/b", "--speculative.algorithm", "none", "--print-config"]) == 0
    assert re.search(r"path: a/b +# .*MODEL", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["serve", "a", *PLAIN], "--model: model.path is given twice; first at MODEL"),
        (
            ["generate", "hi", *PLAIN, "--max-tokens", "1", "--max-tokens=2"],
            "dspark generate: --max-tokens: given twice; first as --max-tokens; accepted: once",
        ),
    ],
)
def test_what_is_given_twice_is_refused(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    line = message if message.startswith("dspark ") else f"dspark: {message}"
    assert capsys.readouterr().err == f"{line}\n"


def test_a_hub_that_cannot_be_reached_is_reported_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unreachable(address: object, timeout: float) -> None:
        raise OSError("no route")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for proxy in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(proxy, raising=False)
    assert main(["verify", "nobody/nothing", "--speculative.algorithm", "none"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "'nobody/nothing' is neither a folder here nor in the model hub's cache" in error


def test_a_port_in_use_is_refused_before_anything_is_loaded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["serve", *PLAIN, "--port", str(port)]) == 1
    assert f"dspark: server.port: 127.0.0.1:{port} is in use" in capsys.readouterr().err


def test_a_model_that_cannot_be_loaded_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(settings: object, config: object) -> None:
        raise LoadError("model.path: found a teapot;\n accepted: a model")

    monkeypatch.setattr(generate, "load_text", refuse)
    assert main(["generate", "hi", *PLAIN]) == 1
    assert capsys.readouterr().err == "dspark: model.path: found a teapot; accepted: a model\n"


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (BrokenPipeError(), 1)])
def test_an_interrupt_and_a_closed_pipe_leave_no_traceback(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(args: object) -> None:
        raise error

    monkeypatch.setattr(generate, "settle", stop)
    assert main(["generate", "hi"]) == code


def test_being_terminated_unwinds_the_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    unwound: list[bool] = []

    def wait(args: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            unwound.append(True)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(generate, "settle", wait)
    with pytest.raises(SystemExit) as ended:
        main(["generate", "hi"])
    assert (ended.value.code, unwound) == (143, [True])
    assert signal.getsignal(signal.SIGTERM) is before


def test_python_m_dspark_is_the_same_program() -> None:
    command = [sys.executable, "-m", "dspark", "serve", "--config", DEMO, "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "the settings are valid\n")


def test_the_command_line_and_the_service_import_no_torch() -> None:
    script = "import sys, dspark.cli.main, server.app, dspark.cli.commands.serve as s; "
    script += "s.add_arguments; "
    script += "assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


# -- checking --------------------------------------------------------------------------------


def test_check_validates_and_loads_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--config", DEMO, "--check"]) == 0
    assert capsys.readouterr().out == "the settings are valid\n"
    assert main(["serve", "--config", DEMO, "--check", "--port", "0"]) == 2


def test_check_lists_the_models_that_it_does_not_look_up(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["serve", "some/target", "--draft-model", "no/draft", "--check"]) == 0
    left = "model.path some/target, speculative.draft_model no/draft"
    assert capsys.readouterr().out == (
        f"the settings are valid; models are looked up at start: {left}\n"
    )


def test_print_config_shows_the_origin_of_each_value(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSPARK__KV__PAGE_SIZE", "4")
    assert main(["serve", "a/b", "--config", DEMO, "--print-config", "--port", "8001"]) == 0
    out = capsys.readouterr().out
    assert "  path: a/b  # MODEL\n" in out
    assert "  page_size: 4  # DSPARK__KV__PAGE_SIZE\n" in out
    assert "  port: 8001  # --port\n" in out
    assert f"  memory_gib: 1.0  # {DEMO}:" in out


# -- generate --------------------------------------------------------------------------------


def test_generate_prints_the_text_and_then_its_statistics(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = FakeEngine("héllo wörld")
    asked = use_fake_engine(monkeypatch, engine)
    argv = ["generate", "say hello", *PLAIN, "--max-tokens", "50", "--temperature", "0.5"]
    assert main([*argv, "--seed", "3"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "héllo wörld\n"
    assert re.search(r"output_tokens=14 finish=stop accept_length=2\.33 ", captured.err)
    (request,) = engine.requests
    assert bytes(request.prompt_ids).decode() == "user: say hello\nassistant: "
    assert (request.params.max_new_tokens, request.params.temperature) == (50, 0.5)
    assert request.params.seed == 3
    assert asked == [EngineConfig(target="some/target")]


def test_generate_reads_stdin_and_leaves_a_raw_prompt_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = FakeEngine()
    use_fake_engine(monkeypatch, engine)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"once upon")))
    assert main(["generate", "--raw", *PLAIN]) == 0
    assert bytes(engine.requests[0].prompt_ids[1:]) == b"once upon"
    assert capsys.readouterr().out == "hello world\n"


# -- serve -----------------------------------------------------------------------------------


def test_serve_logs_a_request_that_works(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line in the log works when pasted, and a signal ends the server with exit code 0."""
    use_fake_engine(monkeypatch, FakeEngine("41 pens", max_len=400))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    answers: list[str] = []

    def client() -> None:
        log = ""

        def is_ready() -> bool:
            nonlocal log
            log += capsys.readouterr().err
            return "try it: " in log

        try:
            wait_until(is_ready, timeout_s=20)
            words = shlex.split(log.partition("try it: ")[2])
            url, data = words[2], words[words.index("-d") + 1]
            answers.append(httpx.post(url, json=json.loads(data), timeout=10).text)
            answers.append(httpx.get(f"http://127.0.0.1:{port}/v1/models").json()["data"][0]["id"])
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=client)
    thread.start()
    assert main(["serve", *PLAIN, "--port", str(port)]) == 0
    thread.join()
    assert "41 " in answers[0]
    assert answers[0].endswith("data: [DONE]\n\n")
    assert answers[1] == "some/target"


def test_a_machine_that_is_busy_already_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", logger="dspark.cli.commands.serve"):
        monkeypatch.setattr(serve, "load_average", lambda: 0.5)
        serve.warn_if_busy()
        assert caplog.messages == []
        monkeypatch.setattr(serve, "load_average", lambda: 999.0)
        monkeypatch.setattr(serve, "runnable_threads", lambda: 0)
        serve.warn_if_busy()
        assert caplog.messages == []
        monkeypatch.setattr(serve, "runnable_threads", lambda: 998)
        serve.warn_if_busy()
    (message,) = caplog.messages
    assert message.startswith("the load average is 999.0 on a machine of ")


def settings_of(*argv: str) -> object:
    flags = [
        read_flag(name, name, value) for name, value in zip(argv[::2], argv[1::2], strict=True)
    ]
    return load_settings(flags=flags).settings


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("demo:smollm2-135m-instruct", "smollm2-135m-instruct"),
        ("a/b", "a/b"),
        (str(ROOT), ROOT.name),
    ],
)
def test_a_model_is_served_under_the_name_of_its_folder_or_hub_id(path: str, name: str) -> None:
    flags = ["speculative.algorithm", "none", "model.path", path]
    assert service.served_name(settings_of(*flags)) == name  # type: ignore[arg-type]
    named = settings_of(*flags, "model.served_name", "mine")
    assert service.served_name(named) == "mine"  # type: ignore[arg-type]


def test_a_symbolic_link_to_a_model_is_served_under_its_name(tmp_path: Path) -> None:
    (tmp_path / "0123abc").mkdir()
    (tmp_path / "my-model").symlink_to(tmp_path / "0123abc")
    for path in (tmp_path / "my-model", f"{tmp_path}/my-model/", tmp_path / "0123abc/../my-model"):
        flags = ["speculative.algorithm", "none", "model.path", str(path)]
        assert service.served_name(settings_of(*flags)) == "my-model"  # type: ignore[arg-type]


def test_options_of_the_service_come_from_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "model_sampling", lambda target, revision: {"top_k": 7})
    flags = ["model.path", "a/b", "speculative.algorithm", "none", "server.max_tokens_cap", "9"]
    config = EngineConfig(target="a/b")
    options = service.server_options(settings_of(*flags), config, keys=KeyRing(("k",)))  # type: ignore[arg-type]
    assert (options.max_tokens_cap, options.default_max_tokens, options.keys.callers) == (
        9,
        "auto",
        ("k",),
    )
    assert options.default_sampling == {"top_k": 7}
    neutral = settings_of(*flags, "server.sampling_defaults", "neutral")
    options = service.server_options(neutral, config, keys=KeyRing())  # type: ignore[arg-type]
    assert options.default_sampling == {}


def test_keys_are_read_from_a_file_one_per_line(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# the team's\n  hunter2\n\nhunter3\n")
    flags = ["model.path", "a/b", "speculative.algorithm", "none"]
    with_file = settings_of(*flags, "server.admin_api_key_file", str(file))
    assert service.keys_of(with_file).admins == ("hunter2", "hunter3")  # type: ignore[arg-type]
    assert service.keys_of(settings_of(*flags)) == KeyRing()  # type: ignore[arg-type]
    file.write_text("# no key yet\n")
    with pytest.raises(SettingsError, match=r"^server\.admin_api_key_file: found .* empty"):
        service.keys_of(with_file)  # type: ignore[arg-type]


def test_one_flag_takes_several_keys() -> None:
    flags = ["model.path", "a/b", "speculative.algorithm", "none"]
    settings = settings_of(*flags, "server.api_key", "one, two")
    assert service.keys_of(settings).callers == ("one", "two")  # type: ignore[arg-type]


def test_a_key_in_the_example_is_a_place_to_fill_in() -> None:
    line = serve.example("http://x:1", has_chat_template=False, needs_key=True)
    assert line.startswith("curl -N http://x:1/v1/completions -H 'authorization: Bearer KEY'")


# -- doctor and progress ---------------------------------------------------------------------


def test_doctor_looks_at_the_machine_without_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for word in ("cores", "memory", "accelerator", "torch", "transformers", "demo target"):
        assert f"  {word}" in out or f"{word}\n" in out
    assert "give --config FILE" in out


def test_doctor_names_what_is_missing_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DSPARK_CACHE", str(tmp_path))
    assert main(["doctor", "--config", DEMO]) == 0
    out = capsys.readouterr().out
    assert "demo target  dspark fetch" in out
    assert "not loaded  demo:smollm2-135m-instruct is not on this machine" in out


def test_doctor_reports_the_active_code_paths_and_the_reasons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = TinyPair.write(tmp_path)
    assert main(["doctor", *pair.flags, "--stacked-context-kv", "off"]) == 0
    found = capsys.readouterr().out.partition("with these settings\n")[2].splitlines()
    rows = dict(re.split(r"  +", line.strip(), maxsplit=1) for line in found)
    assert rows["context KV"] == "per_layer (mode off): switched off"
    assert rows["attention"] == "reference (triton's kernels are for CUDA)"
    assert f"from {pair.target}" in rows["target"]


def test_doctor_draws_the_measured_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = TinyPair.write(tmp_path)
    file = tmp_path / "costs.svg"
    assert main(["doctor", *pair.flags, "--cost-curve", str(file)]) == 0
    drawn = ElementTree.parse(file).getroot()
    texts = ["".join(each.itertext()) for each in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"target pass, by rows", "draft pass, by sequences"} <= set(texts)
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}circle"))) >= 4
    assert f"cost curve    {file}" in re.sub(
        r"cost curve +", "cost curve    ", capsys.readouterr().out
    )
    always = ["--speculative.draft_budget", "always", "--cost-curve", str(file)]
    assert main(["doctor", *pair.flags, *always]) == 1
    assert "no costs were measured" in capsys.readouterr().err


def test_a_cost_curve_without_settings_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--cost-curve", "costs.svg"]) == 2
    assert "--cost-curve: accepted with settings only" in capsys.readouterr().err


def test_progress_without_a_terminal_is_a_line_per_piece_of_work(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with TerminalProgress(stream=sys.stderr) as progress:
        progress.start("downloading", total=10)
        progress.update(5)
        progress.start("converting", total=None)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "downloading ..."
    assert re.fullmatch(r"downloading: done in \d+\.\d s", lines[1])
    assert len(lines) == 4


def test_a_closed_pipe_prints_no_error() -> None:
    script = f"{shlex.quote(sys.executable)} -m dspark serve --help | head -n 1"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, check=True)
    assert done.stderr == b""


# -- the real thing --------------------------------------------------------------------------


@pytest.mark.weights
def test_generate_answers_with_the_demo_pair(demo_target: Path) -> None:
    argv = ["generate", "What is 2 + 3?", "--config", DEMO, "--max-tokens", "8"]
    argv += ["--device.num_threads", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "dspark", *argv],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert re.fullmatch(r"prompt_tokens=\d+ output_tokens=\d+ .*\n", done.stderr), done.stderr
