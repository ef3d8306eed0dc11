import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from dspark.bench.workloads.prompts import Prompt, PromptFileError, read_prompts, spread


def file_with(folder: Path, *lines: object) -> Path:
    file = folder / "prompts.jsonl"
    file.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines))
    return file


def user(text: str) -> tuple[dict[str, str], ...]:
    return ({"role": "user", "content": text},)


def test_the_projects_own_prompts_are_fifteen_of_each_kind_and_all_different() -> None:
    prompts = read_prompts()
    kinds = Counter(prompt.category for prompt in prompts)
    names = ("chat", "code", "arithmetic", "rewriting", "editing")
    assert kinds == dict.fromkeys(names, 15)
    assert len({prompt.messages[0]["content"] for prompt in prompts}) == 75


def test_prompts_to_edit_have_a_long_text() -> None:
    texts = [p.messages[0]["content"] for p in read_prompts() if p.category == "editing"]
    assert all(len(text) > 450 and "\n\n" in text for text in texts)


def test_each_form_of_a_line_is_read(tmp_path: Path) -> None:
    system = {"role": "system", "content": "be brief"}
    file = file_with(
        tmp_path,
        {"category": "chat", "prompt": "one"},
        "",
        {"turns": ["two", "and then"]},
        {"messages": [system, {"role": "user", "content": "three"}], "id": 7},
    )
    assert read_prompts(file) == (
        Prompt("chat", user("one")),
        Prompt("other", user("two")),
        Prompt("other", (system, {"role": "user", "content": "three"})),
    )


def test_line_separators_within_a_text_do_not_end_a_line(tmp_path: Path) -> None:
    file = file_with(tmp_path, json.dumps({"prompt": "a\u2028b"}, ensure_ascii=False))
    assert read_prompts(file) == (Prompt("other", user("a\u2028b")),)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "prompts.jsonl:2: this is no JSON"),
        ("[1]", "prompts.jsonl:2: found a list; accepted: an object with prompt, turns"),
        (
            {"text": "x"},
            "jsonl:2: found the keys text; accepted: prompt, turns or messages",
        ),
        ({"prompt": " "}, "none of them empty"),
        ({"turns": []}, "none of them empty"),
        ({"messages": [{"role": "user"}]}, "none of them empty"),
        ({"prompt": "x", "category": 3}, "prompts.jsonl:2: category: found 3; accepted: a name"),
    ],
)
def test_a_line_that_is_no_prompt_is_named(tmp_path: Path, line: object, message: str) -> None:
    file = file_with(tmp_path, {"prompt": "fine"}, line)
    with pytest.raises(PromptFileError) as refused:
        read_prompts(file)
    assert message in str(refused.value)


def test_a_file_without_prompts_or_without_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptFileError, match="found no prompt"):
        read_prompts(file_with(tmp_path, "", " "))
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(PromptFileError, match="not UTF-8"):
        read_prompts(binary)


def test_categories_take_turns_until_there_are_enough() -> None:
    prompts = [Prompt(category, user(str(i))) for i, category in enumerate("aaabbc")]
    chosen = [(p.category, p.messages[0]["content"]) for p in spread(prompts, 5)]
    assert chosen == [("a", "0"), ("b", "3"), ("c", "5"), ("a", "1"), ("b", "4")]
    assert sorted(spread(prompts, 6), key=str) == sorted(prompts, key=str)


def test_reading_prompts_loads_no_torch() -> None:
    code = "import dspark.bench.workloads.prompts, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
