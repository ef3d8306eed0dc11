"""Reading and splitting training prompts."""

from pathlib import Path

import pytest

from dspark.bench.workloads.prompts import Prompt, PromptFileError, read_prompts
from dspark.training.data.prompts import (
    is_held_out,
    prompt_key,
    read_training_prompts,
    write_prompts,
)
from tests.support.full_disk import room_for


def write(folder: Path, name: str, *lines: str) -> Path:
    (folder / name).write_text("\n".join(lines) + "\n")
    return folder / name


def test_all_three_forms_are_read_and_a_set_is_named_after_its_file(tmp_path: Path) -> None:
    sums = write(tmp_path, "sums.jsonl", '{"prompt": "1+1"}', '{"turns": ["2+2", "3+3"]}')
    mixed = write(
        tmp_path,
        "mixed.jsonl",
        '{"category": "chat", "messages": [{"role": "user", "content": "hi"}]}',
        '{"prompt": "1+1"}',
    )
    found = read_training_prompts([sums, mixed], skips_malformed=False)
    assert [p.category for p in found.by_key.values()] == ["sums", "sums", "chat"]
    assert found.num_repeated == 1


def test_a_malformed_line_is_named_by_its_number_and_refused_or_skipped(tmp_path: Path) -> None:
    file = write(tmp_path, "p.jsonl", '{"prompt": "good"}', "{broken", '{"prompt": ""}')
    with pytest.raises(PromptFileError, match=r"p.jsonl:2: this is no JSON"):
        read_training_prompts([file], skips_malformed=False)
    found = read_training_prompts([file], skips_malformed=True)
    assert len(found.by_key) == 1
    assert [c.split(": ")[0].rpartition(":")[2] for c in found.complaints] == ["2", "3"]


@pytest.mark.parametrize(
    "line", [b"\xff", b'{"prompt": "\\ud800"}', b"[" * 5000, b'{"prompt": ' + b"9" * 5000 + b"}"]
)
def test_a_line_that_is_no_text_is_named_or_skipped(tmp_path: Path, line: bytes) -> None:
    file = tmp_path / "p.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"prompt": "good"}\r\n' + line + b'\r\n{"prompt": "too"}\n')
    with pytest.raises(PromptFileError, match=r"p.jsonl:2: ") as error:
        read_training_prompts([file], skips_malformed=False)
    assert len(str(error.value)) < 300 + len(str(tmp_path))
    found = read_training_prompts([file], skips_malformed=True)
    assert [p.messages[0]["content"] for p in found.by_key.values()] == ["good", "too"]
    assert len(found.complaints) == 1


@pytest.mark.parametrize("skips", [True, False])
def test_an_empty_file_is_refused(tmp_path: Path, skips: bool) -> None:
    with pytest.raises(PromptFileError, match="found no prompt"):
        read_training_prompts([write(tmp_path, "empty.jsonl", "")], skips_malformed=skips)


def test_the_split_depends_on_the_prompt_only() -> None:
    keys = [prompt_key(Prompt("a", ({"role": "user", "content": str(i)},))) for i in range(2000)]
    again = prompt_key(Prompt("b", ({"content": "7", "role": "user"},)))
    assert again == keys[7]
    held_out = [is_held_out(key, share=0.1) for key in keys]
    assert 150 < sum(held_out) < 250
    assert not any(is_held_out(key, share=0.0) for key in keys)
    assert all(is_held_out(k, share=0.2) for k, held in zip(keys, held_out, strict=True) if held)


def test_prompts_that_do_not_fit_on_the_disk_leave_those_that_were_there(tmp_path: Path) -> None:
    file = tmp_path / "held-out-prompts.jsonl"
    before = (Prompt("a", ({"role": "user", "content": "ä\u2028"},)),)
    write_prompts(file, before)
    with room_for(100), pytest.raises(OSError, match=r"too large: .*held-out-prompts.jsonl"):
        write_prompts(file, before * 2)
    assert read_prompts(file) == before
    assert list(tmp_path.iterdir()) == [file]
