"""A GGUF file is converted once, whole, and served with its own tokenizer and chat template."""

import json
import os
from collections import namedtuple
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file
from transformers import Gemma3TextConfig

from dspark.cli.main import main
from dspark.gguf import conversion, convert
from dspark.gguf.conversion import cached_gguf_target, ensure_gguf_target
from dspark.gguf.convert import generation_config, refuse_unread
from dspark.runtime.service import served_name
from dspark.runtime.text import codec_of
from engine.build import load_engine
from engine.config import EngineConfig
from engine.errors import LoadError
from server.settings.loading import load_settings
from server.settings.schema import SettingsError
from server.settings.sources import read_flag
from tests.support.demo_fixtures import SilentProgress
from tests.support.engine.running import greedy_requests, run_all
from tests.support.engine.tiny_models import CPU
from tests.support.gguf_files import END_OF_TEXT, END_OF_TURN, LAYERS, TEMPLATE, write_gguf

_OF_MATRICES = {
    "attn_q": Kind.Q4_0,
    "attn_k": Kind.Q4_1,
    "attn_v": Kind.Q5_0,
    "attn_output": Kind.Q5_1,
    "ffn_gate": Kind.Q8_0,
    "ffn_up": Kind.Q4_K,
    "ffn_down": Kind.Q6_K,
    "output": Kind.F16,
    "token_embd": Kind.BF16,
}
_HF_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> tuple[Path, dict[str, object]]:
    file = tmp_path_factory.mktemp("gguf") / "tiny-mixed.gguf"
    return file, dict(write_gguf(file, _OF_MATRICES))


@pytest.fixture(scope="module")
def folder(mixed: tuple[Path, dict[str, object]], cache: Path) -> Path:
    return ensure_gguf_target(mixed[0], cache_dir=cache, progress=SilentProgress())


def test_every_type_of_tensor_becomes_the_float32_that_it_stands_for(
    mixed: tuple[Path, dict[str, object]], folder: Path
) -> None:
    found, expected = load_file(folder / "model.safetensors"), mixed[1]
    assert {tensor.dtype for tensor in found.values()} == {torch.float32}
    for layer in range(LAYERS):
        for name, hf_name in _HF_NAMES.items():
            tensor = torch.from_numpy(expected[f"blk.{layer}.{name}.weight"])
            assert found[f"model.layers.{layer}.{hf_name}.weight"].equal(tensor), name
    assert found["lm_head.weight"].equal(torch.from_numpy(expected["output.weight"]))
    embedding = torch.from_numpy(expected["token_embd.weight"])
    assert found["model.embed_tokens.weight"].equal(embedding)


def test_tokenizer_template_and_end_tokens_are_the_files(folder: Path) -> None:
    codec = codec_of(str(folder), revision=None, trust_remote_code=False, chat_template=None)
    assert codec.chat_template == TEMPLATE
    assert len(codec.encode("that", add_special_tokens=False)) == 3
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [END_OF_TEXT, END_OF_TURN]


@pytest.mark.parametrize(
    ("of_file", "of_config", "expected"),
    [
        ({"eos": 5, "eot": 7, "eom": 5}, 2, [5, 7]),
        ({}, 2, [2]),
        ({}, [2, 3], [2, 3]),
        ({}, None, None),
    ],
)
def test_generation_ends_at_the_tokens_of_the_file_or_else_of_the_config(
    of_file: dict[str, int], of_config: int | list[int] | None, expected: list[int] | None
) -> None:
    fields = {f"tokenizer.ggml.{name}_token_id": i for name, i in of_file.items()}
    config = Gemma3TextConfig(eos_token_id=of_config)
    assert generation_config(fields, config).eos_token_id == expected


def test_a_file_is_converted_once_and_again_when_it_changes(
    mixed: tuple[Path, dict[str, object]],
    folder: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(gguf: Path, folder: Path, progress: object) -> None:
        raise AssertionError("converted again")

    monkeypatch.setattr(conversion, "convert_gguf", fail)
    file = mixed[0]
    assert ensure_gguf_target(file, cache_dir=cache, progress=SilentProgress()) == folder
    before = file.stat()
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert cached_gguf_target(file, cache) is None
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_a_converted_file_is_served(folder: Path, quantization: str) -> None:
    config = EngineConfig(
        target=str(folder),
        quantization=quantization,  # type: ignore[arg-type]
        num_pages=64,
        num_threads=1,
        lookup="off",
    )
    built = load_engine(config, device=CPU)
    ids, _ = run_all(built, greedy_requests([[84, 104, 101]], 12))["0"]
    assert len(ids) == 12 or ids[-1] in (END_OF_TEXT, END_OF_TURN)
    assert built.target.eos_ids == {END_OF_TEXT, END_OF_TURN}


def test_the_served_name_is_that_of_the_file(mixed: tuple[Path, dict[str, object]]) -> None:
    flags = [
        read_flag("MODEL", "model.path", str(mixed[0])),
        read_flag("--algorithm", "speculative.algorithm", "none"),
    ]
    assert served_name(load_settings(flags=flags, environ={}).settings) == "tiny-mixed"


def test_an_architecture_that_transformers_cannot_read_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSPARK_CACHE", str(tmp_path / "cache"))
    write_gguf(tmp_path / "odd.gguf", architecture="nosuch")
    assert main(["verify", str(tmp_path / "odd.gguf"), "--speculative.algorithm", "none"]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("dspark: cannot convert odd.gguf: transformers cannot read it: ")
    assert "architecture nosuch is not supported" in line
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_a_field_that_transformers_ignores_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "scaled.gguf", rope_scaling=8.0)
    message = (
        r"cannot convert scaled\.gguf: transformers does not read its field qwen3\.rope\.scaling"
    )
    with pytest.raises(LoadError, match=message):
        ensure_gguf_target(
            tmp_path / "scaled.gguf", cache_dir=tmp_path / "cache", progress=SilentProgress()
        )


@pytest.mark.parametrize(
    ("field", "value", "is_read"),
    [
        ("gemma3.rope.freq_base", 1e6, True),
        ("gemma3.rope.freq_base", 5e5, False),
        ("gemma3.rope.scaling.factor", 1.0, True),
        ("gemma3.rope.scaling.factor", 8.0, False),
        ("gemma3.attention.sliding_window", 64, True),
        ("gemma3.attention.sliding_window", 128, False),
        ("gemma3.final_logit_softcapping", 30.0, False),
        ("rope_freqs.weight", "a tensor", False),
        ("general.name", "tiny", True),
    ],
)
def test_fields_that_change_the_model_are_compared_with_its_config(
    field: str, value: object, is_read: bool
) -> None:
    config = Gemma3TextConfig(sliding_window=64)
    with nullcontext() if is_read else pytest.raises(SystemExit, match=field):
        refuse_unread({field: value}, config)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.gguf", b"nothing", r"begins with b'noth'; accepted: a GGUF file"),
        ("a-00001-of-00002.gguf", b"GGUF", r"a part of a split model; accepted: one file"),
    ],
)
def test_a_file_that_is_no_whole_model_is_refused(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(LoadError, match=message):
        ensure_gguf_target(tmp_path / name, cache_dir=tmp_path, progress=SilentProgress())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.gguf", r"missing\.gguf, which does not exist; accepted: a file that ends in"),
        ("weights.bin", r"weights\.bin, which is no GGUF file; accepted: a file that ends in"),
    ],
)
def test_a_path_that_is_no_gguf_file_is_refused_before_anything_is_loaded(
    tmp_path: Path, name: str, message: str
) -> None:
    (tmp_path / "weights.bin").write_bytes(b"GGUF")
    flags = [read_flag("MODEL", "model.path", str(tmp_path / name))]
    with pytest.raises(SettingsError, match=message):
        load_settings(flags=flags, environ={})


def test_too_small_a_disk_is_refused_with_the_size_of_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(convert.shutil, "disk_usage", lambda path: usage(1 << 40, 0, 5 << 20))
    with pytest.raises(SystemExit, match=r"found 5 MiB free .* need 65 MiB; set DSPARK_CACHE"):
        convert.require_space(torch.nn.Linear(512, 512), tmp_path)
