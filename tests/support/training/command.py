"""Runs `dspark train` over a tiny target on disk."""

import json
from pathlib import Path

import yaml

from dspark.cli.main import main
from tests.support.server.tiny_pair import TinyPair

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def write_config(folder: Path, pair: TinyPair, **changes: object) -> Path:
    """Writes the settings of a small training; in changes, __ stands for the dot."""
    (folder / "sums.jsonl").write_text(
        "".join(f"{json.dumps({'prompt': word})}\n" for word in WORDS)
    )
    settings: dict[str, dict[str, object] | str] = {
        "output": "out",
        "model": {"path": str(pair.target)},
        "data": {"prompts": ["sums.jsonl"], "max_tokens": 64, "held_out": 0.4},
        "answers": {"temperatures": [0, 0.9], "max_new_tokens": 12, "min_tokens": 4},
        "design": {"block_size": 3, "num_layers": 1, "num_taps": 2, "markov_rank": 4},
        "training": {
            "epochs": 2,
            "sequences_per_step": 4,
            "num_anchors": 4,
            "validate_every": 2,
            "checkpoint_every": 2,
        },
        "evaluation": {"prompts_per_set": 1},
        "device": {"type": "cpu", "num_threads": 1},
    }
    for name, value in changes.items():
        section, _, field = name.partition("__")
        part = settings.setdefault(section, {})
        assert isinstance(part, dict)
        part[field] = value
    (folder / "train.yaml").write_text(yaml.safe_dump(settings))
    return folder / "train.yaml"


def train(config: Path, *words: str) -> int:
    """Runs the command in this process; its exit code."""
    return main(["train", "--config", str(config), *words])
