"""The example of docs/deploy.md: two actors of Ray Data answer prompts through the Python API."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dspark.llm import LLM
from tests.support.paths import ROOT
from tests.support.server.tiny_pair import TinyPair

EXAMPLE = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.mark.ray
def test_the_example_answers_as_one_model_does(tmp_path: Path) -> None:
    pytest.importorskip("ray.data", exc_type=ImportError)  # also without pyarrow
    pair = TinyPair.write(tmp_path / "pair")  # a folder "draft" beside a script hides the package
    config = tmp_path / "config.yaml"
    settings = {
        "model": {"path": str(pair.target)},
        "speculative": {"draft_model": str(pair.draft)},
        "kv": {"num_pages": 64, "page_size": 8},
        "device": {"num_threads": 1},
    }
    config.write_text(yaml.safe_dump(settings))
    prompts = [f"number {i}" for i in range(40)]
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    found = EXAMPLE.search((ROOT / "docs" / "deploy.md").read_text())
    assert found is not None
    example, output = tmp_path / "example.py", tmp_path / "answers"
    example.write_text(found[1])
    command = [sys.executable, str(example), str(file), str(config), str(output)]
    alone = {**os.environ, "RAY_ADDRESS": "local"}  # whatever clusters this machine has
    subprocess.run(command, cwd=ROOT, env=alone, check=True, timeout=600)
    lines = [line for part in output.glob("*.json") for line in part.read_text().splitlines()]
    answers = {each["prompt"]: each["answer"] for each in map(json.loads, lines)}
    with LLM(config) as llm:
        expected = llm.generate(prompts, {"temperature": 0, "max_new_tokens": 32}, use_tqdm=False)
    assert answers == {prompt: each.text for prompt, each in zip(prompts, expected, strict=True)}
    assert len(lines) == len(prompts)
