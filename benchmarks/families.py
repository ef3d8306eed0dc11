"""Measures plain decoding against transformers for families with CPU kernels, one stream.

    python -m benchmarks.families --work FOLDER --output benchmarks/results

Weights are random, sizes near the demo target's, its tokenizer: a speed depends on shapes alone.
Token ids are compared, so that a fast wrong pass is seen.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from dspark.bench.report.environment import Start, circumstances
from dspark.cli.measuring import check_output
from dspark.runtime.models import demo_target

_SIZES: dict[str, Any] = {
    "vocab_size": 49152,
    "hidden_size": 640,
    "intermediate_size": 1792,
    "num_hidden_layers": 16,
    "num_attention_heads": 10,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "pad_token_id": 2,
    "eos_token_id": 2,
}
_FAMILIES: dict[str, dict[str, Any]] = {
    "gemma3_text": {"sliding_window": 512, "query_pre_attn_scalar": 64},
    "granite": {"attention_multiplier": 0.125, "residual_multiplier": 0.5},
    "olmo2": {},
    "phi3": {},
    "smollm3": {},
}
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.families",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--work", type=Path, required=True, metavar="FOLDER", help="for the models")
    add("--only", nargs="+", choices=list(_FAMILIES), default=list(_FAMILIES))
    add("--num-prompts", type=int, default=4, metavar="N", help="default 4")
    add("--max-tokens", type=int, default=64, metavar="N", help="of an answer; default 64")
    add("--trials", type=int, default=3, metavar="N", help="default 3")
    add("--output", type=Path, metavar="PATH", help="write the JSON to this file or folder")
    args = parser.parse_args(arguments)
    check_output(args.output)
    start = Start.now()
    found = {name: _measured(name, args) for name in args.only}
    line = json.dumps({"command": "families", **circumstances(start), "families": found})
    if args.output is not None:
        file: Path = args.output
        if file.is_dir():
            file = file / f"families-{start.time:%Y%m%d-%H%M%S}.json"
        file.write_text(f"{line}\n", encoding="utf-8")
    print(line)
    return 0


def _measured(family: str, args: argparse.Namespace) -> dict[str, Any]:
    folder = args.work / family
    if not folder.exists():
        _write(family, folder)
    command = [sys.executable, "-m", "dspark", "bench", str(folder), "--compare", "transformers"]
    command += ["--speculative.algorithm", "none", "--trials", str(args.trials)]
    command += ["--num-prompts", str(args.num_prompts), "--max-tokens", str(args.max_tokens)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout.strip():
        raise SystemExit(f"families: {family}\n{done.stderr}")
    report = json.loads(done.stdout.splitlines()[-1])
    kept = ("tokens_per_s", "tokens_per_s_transformers", "speedup", "token_ids_identical")
    found = {key: report[key] for key in kept}
    print(f"{family}: {json.dumps(found)}", file=sys.stderr, flush=True)
    return found


def _write(family: str, folder: Path) -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**_SIZES, **_FAMILIES[family]})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    for name in _TOKENIZER:
        shutil.copy(demo_target() / name, folder)


if __name__ == "__main__":
    sys.exit(main())
