"""Report what this machine has, what is missing, and which code paths the settings would use.

Without settings it checks the machine alone. With settings (--config FILE, or flags) it also loads
the models, if they are on this machine, and reports which code paths are active and why.

--diagnose-draft checks the draft alone: it answers a few prompts with the target and reads the
draft's checkpoint in other ways, with the other slot convention and with taps one layer off. It
prints the accept length of each reading. The exit code is 1 when the draft as declared does not
save time, or another reading is better."""

import argparse
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

from dspark.bench.report.cost_picture import cost_picture
from dspark.bench.workloads.prompts import spread
from dspark.cli.measuring import check_picture, progress_bar, prompts_in
from dspark.cli.prepared_pair import prepare, require_draft
from dspark.cli.startup import add_checking_flags, add_model_argument, settle
from dspark.demo.target import cached_demo_target
from dspark.runtime.logs import configure_log
from dspark.runtime.models import local_target, resolved_engine_config, running_engine
from engine import LoadError
from engine.model_setup.memory_plan import size_text
from engine.observability.start_report import Row, start_rows
from engine.platform.cache_dir import default_cache_dir
from engine.platform.host import (
    affinity_cores,
    available_cores,
    available_memory_bytes,
    cgroup_limits,
    cpu_features,
    cpu_name,
    cxx_compiler,
    find_cuda,
    installed_version,
    total_memory_bytes,
)
from server.settings.flags import add_settings_flags, settings_flags
from server.settings.model_sources import DEMO_NAME
from server.settings.schema import SERVING, Settings, SettingsError

USAGE = "dspark doctor [MODEL] [--config FILE] [options]"

_PACKAGES = {  # distribution: what for
    "torch": "required",
    "transformers": "required",
    "accelerate": "required",
    "gguf": "reads GGUF files, as that of the demo target, once",
    "torchao": "quantised drafts",
    "flashinfer-python": "attention over pages, CUDA only",
}
_NUM_PROMPTS = 4  # of the diagnosis, if none are named
_DIAGNOSED_TOKENS = 64  # of each answer
_FOR_DEMO = ("gguf", "accelerate")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--load", action="store_true", help="load the models even if they must be fetched first"
    )
    parser.add_argument(
        "--cost-curve",
        type=Path,
        metavar="FILE",
        help="draw the measured costs of target and draft passes as an SVG picture",
    )
    parser.add_argument(
        "--diagnose-draft",
        action="store_true",
        help="find out why the draft's tokens are not accepted",
    )
    parser.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="JSONL of prompts for --diagnose-draft; default: "
        f"{_NUM_PROMPTS} prompts that come with dspark",
    )
    add_model_argument(parser)
    add_checking_flags(parser)
    add_settings_flags(parser)


def run(args: argparse.Namespace) -> int:
    check_picture(args.cost_curve, flag="--cost-curve")
    if args.diagnose_draft and args.cost_curve is not None:
        raise SettingsError("--cost-curve: found together with --diagnose-draft; accepted: one")
    if args.diagnose_draft:
        return _diagnose_draft(args)
    if args.prompts is not None:
        raise SettingsError("--prompts: accepted with --diagnose-draft only")
    settings = None
    if _has_settings(args):
        settings = settle(args)
        if settings is None:
            return 0
    if args.cost_curve is not None and settings is None:
        raise SettingsError("--cost-curve: accepted with settings only, such as --config demo")
    _print("machine", machine_rows())
    _print("software", software_rows())
    cache_dir = default_cache_dir(os.environ)
    _print("demo target", demo_rows(cache_dir))
    _print("missing", missing_rows(cache_dir, settings) or [("nothing", "")])
    _print(
        "with these settings", _active_rows(settings, load=args.load, cost_curve=args.cost_curve)
    )
    return 0


def _diagnose_draft(args: argparse.Namespace) -> int:
    """Print the accept length of every reading of the draft's checkpoint, and the verdict."""
    settings = settle(args)
    if settings is None:
        return 0
    require_draft(settings, purpose="diagnose")
    absent = [] if args.load else list(_not_at_hand(settings))
    if absent:
        raise LoadError(f"{', '.join(absent)} is not on this machine; --load fetches it first")
    prompts = prompts_in(args.prompts)
    if args.prompts is None:
        prompts = spread(prompts, _NUM_PROMPTS)
    ready = prepare(settings, prompts)

    from dspark.bench.draft_quality.diagnosis import diagnose_draft  # heavy: loads torch

    with progress_bar(len(prompts) + 1) as report:
        found = diagnose_draft(
            ready.config,
            [prompt.token_ids for prompt in ready.encoded],
            max_new_tokens=_DIAGNOSED_TOKENS,
            report=report,
        )
    trials = (found.declared, *found.others)
    _print(
        f"accept length over {found.declared.num_anchors} anchors in {len(prompts)} answers",
        [(f"{trial.accept_length:.2f}", trial.reading.remedy) for trial in trials],
    )
    _print("diagnosis", [("verdict", found.verdict())])
    return 0 if found.holds else 1


def machine_rows() -> list[Row]:
    limits, cuda = cgroup_limits(), find_cuda()
    quota = f"a quota of {limits.cores:g}" if limits.cores is not None else "no quota"
    total, available = total_memory_bytes(), available_memory_bytes()
    return [
        ("system", f"{platform.system()} {platform.release()}, {platform.machine()}"),
        ("processor", f"{cpu_name()} ({', '.join(cpu_features()) or 'no known features'})"),
        ("cores", f"{available_cores()} usable: {affinity_cores()} in the mask, {quota}"),
        ("memory", f"{_size(available)} available of {_size(total)}"),
        *(
            ("accelerator", f"{name}, {_size(size)}")
            for name, size in zip(cuda.device_names, cuda.memory_bytes, strict=True)
        ),
        *([("accelerator", f"none: {cuda.missing}")] if cuda.missing else []),
    ]


def software_rows() -> list[Row]:
    python = f"{platform.python_version()} at {sys.executable}"
    return [
        ("python", python),
        ("dspark-server", installed_version("dspark-server") or "not installed"),
        *((name, _installed(name, purpose)) for name, purpose in _PACKAGES.items()),
        ("C++ compiler", f"{cxx_compiler() or 'none found'} (native kernels for CPU)"),
    ]


def demo_rows(cache_dir: Path) -> list[Row]:
    folder = cached_demo_target(cache_dir)
    return [("cache", str(cache_dir)), ("folder", str(folder) if folder else "not made yet")]


def missing_rows(cache_dir: Path, settings: Settings | None) -> list[Row]:
    """List what the demo or the given settings lack, and the command that provides it."""
    rows = [
        (name, "make setup")
        for name, purpose in _PACKAGES.items()
        if purpose == "required" and installed_version(name) is None
    ]
    wants_demo = settings is None or settings.model.path == DEMO_NAME
    if wants_demo and cached_demo_target(cache_dir) is None:
        absent = [name for name in _FOR_DEMO if installed_version(name) is None]
        rows += [(name, f"pip install {name}") for name in absent]
        rows.append(("demo target", "dspark fetch (93 MB to download, 0.54 GB in the cache)"))
    if settings is not None and settings.device.type == "cuda":
        rows += [("CUDA", reason) for reason in [find_cuda().missing] if reason]
    return rows


def _active_rows(
    settings: Settings | None, *, load: bool, cost_curve: Path | None = None
) -> list[Row]:
    """Load the models if they are here; return the start report, and draw the cost curve."""
    if settings is None:
        return [("no settings", "give --config FILE to see which code paths it would use, and why")]
    absent = [] if load else list(_not_at_hand(settings))
    if absent:
        return [
            ("not loaded", f"{', '.join(absent)} is not on this machine; --load fetches it first")
        ]
    configure_log("warning")
    with running_engine(resolved_engine_config(settings)) as engine:
        rows = start_rows(engine.info.details)
        if cost_curve is not None:
            cost_curve.write_text(cost_picture(engine.info.details), encoding="utf-8")
            rows.append(("cost curve", str(cost_curve)))
        return rows


def _not_at_hand(settings: Settings) -> Iterator[str]:
    """Yield the models that are not on this machine."""
    target, draft = settings.model.path, settings.speculative.draft_model
    if local_target(target) is None:
        yield target
    has_draft = settings.speculative.algorithm == "dspark"
    if has_draft and draft != DEMO_NAME and not Path(str(draft)).is_dir():
        yield str(draft)


def _has_settings(args: argparse.Namespace) -> bool:
    has_variables = any(name.startswith(SERVING.env_prefix) for name in os.environ)
    has_arguments = args.config is not None or args.model is not None or settings_flags(args)
    return bool(has_arguments) or has_variables


def _installed(name: str, purpose: str) -> str:
    version = installed_version(name)
    return f"{version} ({purpose})" if version else f"not installed ({purpose})"


def _size(size: int | None) -> str:
    return "an unknown amount" if size is None else size_text(size)


def _print(title: str, rows: list[Row]) -> None:
    print(title)
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"  {name:<{width}}  {value}".rstrip())
