"""Writes the part of the JSON of `dspark bench` that a comparison of servers reads.

python -m tests.support.bench.small_bench SECONDS JOURNAL [the flags of dspark bench]
"""

import argparse
import json
from pathlib import Path

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("seconds", type=float)
    parser.add_argument("journal", type=Path)
    for flag in ("--num-prompts", "--concurrency", "--max-tokens", "--trials"):
        parser.add_argument(flag, type=int)
    for flag in ("--prompts", "--output"):
        parser.add_argument(flag, type=Path)
    args = parser.parse_args()
    with args.journal.open("a") as journal:
        journal.write(f"engine {args.concurrency} {args.num_prompts} {args.trials}\n")
    stages = {"plan": 40, "draft": 10, "verify": 30, "commit": 5, "context": 10, "rest": 5}
    arm = {
        "duration_s": {"median": args.seconds},
        "output_tokens": {"median": args.num_prompts * args.max_tokens},
        "stages": {name: {"percent": percent} for name, percent in stages.items()},
    }
    args.output.write_text(json.dumps({"arms": {"speculation": arm}}))
