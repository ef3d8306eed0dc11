"""Measures what quantisation costs in quality: perplexity, and agreement with float32.

    PEERS=/where/they/are python -m benchmarks.peers.quality --output FILE.json

This server's int8 is compared with its float32, and llama.cpp's Q8_0 and Q4_K_M with llama.cpp's
float32, over the same text: the language reference that Python carries. As llama-perplexity does,
the text is cut into windows of 512 tokens, and the second half of each is scored. Agreement is
the share of scored positions whose most probable token is that of float32.
"""

import argparse
import hashlib
import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from pydoc_data.topics import topics

from dspark import LLM, SamplingParams
from dspark.llm.settings import resolve_settings
from dspark.runtime.models import resolved_engine_config
from dspark.runtime.text import load_text
from engine.platform.host import available_cores

_WINDOW = 512  # tokens, as llama-perplexity's default
_NUM_BYTES = 200_000
_GGUF_TYPES = ("Q8_0", "Q4_K_M")


@dataclass(frozen=True, slots=True)
class Quality:
    """Perplexity over the scored tokens, and the share of the same most probable tokens."""

    perplexity: float
    agreement: float | None  # with float32 of the same program; None for float32


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table, and write it as JSON; return 1 if a program of llama.cpp fails."""
    args = _parser().parse_args(arguments)
    text = text_of_language_reference()
    rows = own_quality(args.config, text, args.windows)
    if args.peers is not None:
        try:
            rows |= llamacpp_quality(args.peers / "llamacpp", text, args.windows)
        except subprocess.CalledProcessError as error:
            print(f"quality: {error}: {error.stderr[-500:]}", file=sys.stderr)
            return 1
    for name, quality in rows.items():
        share = "" if quality.agreement is None else f"{quality.agreement:8.2%}"
        print(f"{name:24} perplexity {quality.perplexity:8.4f}  {share}")
    if args.output is not None:
        found = {
            "command": "peers-quality",
            "text": f"pydoc_data.topics of Python {platform.python_version()}",
            "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
            "windows": args.windows,
            "window_tokens": _WINDOW,
            "scored_tokens": args.windows * (_WINDOW // 2 - 1),
            "quality": {name: asdict(quality) for name, quality in rows.items()},
        }
        args.output.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def text_of_language_reference() -> str:
    """Return the first 200,000 bytes of Python's language reference, topics by name."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    return text.encode()[:_NUM_BYTES].decode(errors="ignore")


def own_quality(config: str, text: str, num_windows: int) -> dict[str, Quality]:
    """Return the quality of this server's float32 and int8 targets."""
    base, base_best = _scored(config, text, num_windows, quantization="none")
    int8, best = _scored(config, text, num_windows, quantization="int8")
    agreement = sum(a == b for a, b in zip(best, base_best, strict=True)) / len(best)
    return {"dspark float32": Quality(base, None), "dspark int8": Quality(int8, agreement)}


def _scored(
    config: str, text: str, num_windows: int, *, quantization: str
) -> tuple[float, list[int]]:
    """Return the perplexity, and the most probable token of each scored position."""
    losses, best = [], []
    resolved = resolve_settings(config, {})
    ids = load_text(resolved, resolved_engine_config(resolved)).encode(text)
    if len(ids) < num_windows * _WINDOW:
        raise SystemExit(f"--windows: found {num_windows}; accepted: at most {len(ids) // _WINDOW}")
    windows = [ids[i * _WINDOW :][:_WINDOW] for i in range(num_windows)]
    settings = {"model.quantization": quantization, "speculative.algorithm": "none"}
    with LLM(config, **settings) as llm:
        completions = llm.generate(
            windows,
            SamplingParams(max_new_tokens=0),
            return_logprob=True,
            logprob_start_len=_WINDOW // 2 + 1,
            top_logprobs_num=1,
        )
        for completion in completions:
            for logprob in completion.prompt_logprobs or ():
                losses.append(-logprob.logprob)
                best.append(logprob.top[0][0])
    return math.exp(math.fsum(losses) / len(losses)), best


def llamacpp_quality(folder: Path, text: str, num_windows: int) -> dict[str, Quality]:
    """Return the quality of llama.cpp's float32, Q8_0 and Q4_K_M files in `folder`.

    Raises subprocess.CalledProcessError.
    """
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        text_file, base = Path(scratch) / "text.txt", Path(scratch) / "base.kld"
        text_file.write_text(text)
        command = [str(folder / "llama-perplexity"), "-c", str(_WINDOW)]
        command += ["-t", os.environ.get("THREADS") or str(available_cores())]
        command += ["--chunks", str(num_windows), "-ctk", "f32", "-ctv", "f32"]
        command += ["--kl-divergence-base", str(base)]
        _run([*command, "-f", str(text_file), "-m", str(folder / "model-f32.gguf")])
        for kind in _GGUF_TYPES:
            model = str(folder / f"model-{kind.lower()}.gguf")
            printed = _run([*command, "--kl-divergence", "-m", model])
            found["llama.cpp F32"] = Quality(
                number(r"Mean PPL\(base\)\s*:\s*([\d.]+)", printed), None
            )
            found[f"llama.cpp {kind}"] = Quality(
                number(r"Mean PPL\(Q\)\s*:\s*([\d.]+)", printed),
                number(r"Same top p:\s*([\d.]+)", printed) / 100,
            )
    return found


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def number(pattern: str, text: str) -> float:
    """Return the number that a pattern finds. Raises SystemExit if it finds none."""
    match = re.search(pattern, text)
    if match is None:
        raise SystemExit(f"llama-perplexity printed no {pattern}: {text[-500:]}")
    return float(match[1])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers.quality",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--config", default="configs/demo.yaml", metavar="FILE", help="of the pair")
    add("--windows", type=int, default=32, metavar="N", help="of 512 tokens; default 32")
    add(
        "--peers",
        type=Path,
        default=os.environ.get("PEERS"),
        metavar="FOLDER",
        help="where llama.cpp is; default $PEERS; without it only this server is measured",
    )
    add("--output", type=Path, metavar="FILE", help="write JSON here")
    return parser


if __name__ == "__main__":
    sys.exit(main())
