"""Entry points of the measuring commands: load the models, measure, record the environment."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from dspark.bench.compare.grammar import NUM_ARMS, MasksFor, compare_grammars
from dspark.bench.compare.greedy_identity import verify_greedy_identity
from dspark.bench.compare.speculation import compare_speculation
from dspark.bench.compare.stacked import compare_stacked
from dspark.bench.compare.throughput import measure_throughput
from dspark.bench.compare.transformers import compare_transformers
from dspark.bench.draft_quality.accept_lengths import measure_accept_lengths
from dspark.bench.draft_quality.calibration import (
    CalibrationOutcome,
    calibrate,
    check_can_calibrate,
)
from dspark.bench.draft_quality.confidence_rounds import ConfidenceRecorder
from dspark.bench.draft_quality.reliability import PLOT_NAME, draw_reliability
from dspark.bench.profile.profiling import measure_profile
from dspark.bench.report.environment import Start, circumstances
from dspark.bench.report.outcome import Outcome
from dspark.bench.workloads.interleaving import Report, num_reports
from dspark.bench.workloads.trial import Workload
from engine.build import Built, load_engine, wire_engine
from engine.config import EngineConfig
from engine.errors import RequestRejected
from engine.loading.draft import resolve_folder
from engine.observability.step_observer import StepObserver
from engine.platform.auto_settings import configure_threads, resolve_device
from engine.platform.host import cpu_name

Compare = Literal["speculation", "stacked", "transformers", "grammar"]

_REPETITIONS = 100  # of each context write
_BLOCK_ROOM = 64  # tokens; more than the block of any draft


@dataclass(frozen=True, slots=True)
class Measurement:
    """An outcome with its circumstances."""

    outcome: Outcome
    circumstances: Mapping[str, object]
    notes: tuple[str, ...]  # caveats of the table


def run_benchmark(
    config: EngineConfig,
    *,
    compare: Compare | None,
    workload: Workload,
    trials: int,
    report: Report,
    masks_for: MasksFor | None = None,
    by_proposer: bool = False,
) -> Measurement:
    """Measure the engine of a config, or compare two ways to run it.

    masks_for makes the grammars of compare="grammar" and is required for it. by_proposer: with
    compare="speculation", also measure each of the two proposers alone. Raises LoadError for models
    that cannot be served, and RequestRejected for such a prompt.
    """

    def measure(device: torch.device) -> Outcome:
        if compare is None:
            built = _load(config, workload, device)
            return measure_throughput(built, workload, trials=trials, report=report)
        if compare == "speculation":
            sized = sized_for_two(config, workload, device)
            speculative = _load(sized, workload, device)
            plain = _without_draft(sized, speculative, device)
            single = _single_proposers(sized, speculative, device) if by_proposer else None
            return compare_speculation(
                plain, speculative, workload, trials=trials, report=report, single=single
            )
        if compare == "grammar":
            assert masks_for is not None, "a comparison of grammars needs masks"
            built = _load(config, workload, device)
            masks = masks_for(built.engine.info)
            return compare_grammars(built, workload, masks, trials=trials, report=report)
        if compare == "transformers":
            sized = sized_for_two(config, workload, device)
            built = _load(sized, workload, device)
            has_draft = built.draft is not None
            return compare_transformers(
                _without_draft(sized, built, device) if has_draft else built,
                built if has_draft else None,
                workload,
                trials=trials,
                report=report,
            )
        return compare_stacked(
            _load(_with_whole_rounds(config), workload, device),
            workload,
            trials=trials,
            repetitions=_REPETITIONS,
            device=device,
            report=report,
        )

    return _measured(config, measure)


def run_profile(
    config: EngineConfig, *, workload: Workload, turns: int, report: Report
) -> Measurement:
    """Profile a decode round. Reports profiling.NUM_REPORTS times.

    Raises what `run_benchmark` raises.
    """

    def measure(device: torch.device) -> Outcome:
        built = _load(config, workload, device)
        return measure_profile(built, workload, turns=turns, device=device, report=report)

    return _measured(config, measure)


def benchmark_reports(
    compare: Compare | None, *, trials: int, has_draft: bool = True, by_proposer: bool = False
) -> int:
    """Return how often `run_benchmark` reports."""
    arms = {None: 1, "transformers": 2 + has_draft, "grammar": NUM_ARMS}
    arms["speculation"] = 4 if by_proposer else 2
    num_arms = arms.get(compare, 2)
    return num_reports(num_arms=num_arms, trials=trials) + (compare == "stacked")


def run_verification(config: EngineConfig, *, workload: Workload, report: Report) -> Measurement:
    """Verify greedy text with transformers. Reports once per prompt, and once more.

    Raises what `run_benchmark` raises, and LoadError for a target with other greedy decoding.
    """

    def measure(device: torch.device) -> Outcome:
        return verify_greedy_identity(
            _load(config, workload, device),
            workload.prompts,
            max_new_tokens=workload.params.max_new_tokens,
            concurrency=workload.concurrency,
            report=report,
        )

    return _measured(config, measure)


def run_evaluation(
    config: EngineConfig, *, workload: Workload, temperatures: Sequence[float], report: Report
) -> Measurement:
    """Measure accept length by prompt set. Reports once for each temperature.

    Raises what `run_benchmark` raises.
    """

    def measure(device: torch.device) -> Outcome:
        built = _load(_with_whole_rounds(config), workload, device)
        return measure_accept_lengths(built, workload, temperatures=temperatures, report=report)

    return _measured(config, measure)


def run_calibration(
    config: EngineConfig,
    *,
    workload: Workload,
    dataset: str,
    replace: bool,
    num_rounds: int,
    report: Report,
) -> Measurement:
    """Calibrate the draft's confidences and write calibration.json. Reports twice.

    num_rounds: where collecting stops.

    Raises what `run_benchmark` raises, LoadError for a draft without a confidence head or with
    a calibration, and OSError if the file cannot be written.
    """
    assert config.draft is not None
    recorder = ConfidenceRecorder()
    # Every position is verified.
    whole = dataclasses.replace(
        _with_whole_rounds(config), num_draft_tokens=None, confidence_threshold=None
    )
    name, revision = config.draft, config.draft_revision

    def measure(device: torch.device) -> Outcome:
        built = _load(whole, workload, device, observer=recorder)
        folder = resolve_folder(name, revision)
        check_can_calibrate(built, folder, replace=replace)
        return calibrate(
            built,
            recorder,
            workload,
            dataset=dataset,
            folder=folder,
            num_rounds=num_rounds,
            report=report,
        )

    measurement = _measured(config, measure)
    return dataclasses.replace(
        measurement, notes=(*measurement.notes, _note_of_plot(measurement.outcome))
    )


def _with_whole_rounds(config: EngineConfig) -> EngineConfig:
    """Verify whole blocks, so that the counts depend on the draft and not on the machine."""
    return dataclasses.replace(config, draft_budget="always", lookup="off")


def _note_of_plot(outcome: Outcome) -> str:
    assert isinstance(outcome, CalibrationOutcome), type(outcome)
    file = outcome.file.with_name(PLOT_NAME)
    try:
        draw_reliability(outcome, file)
    except ImportError:
        hint = "pip install -e '.[train]'"
        return f"no reliability plot: matplotlib is not installed ({hint})"
    return f"reliability plot: {file}"


def pages_for(workload: Workload, *, page_size: int) -> int:
    """Return the pages that this workload needs without preemption."""
    longest = max(len(prompt.token_ids) for prompt in workload.prompts)
    tokens = longest + workload.params.max_new_tokens + _BLOCK_ROOM
    return workload.concurrency * -(-tokens // page_size)


def sized_for_two(config: EngineConfig, workload: Workload, device: torch.device) -> EngineConfig:
    """Size the pools of two engines on CUDA, where one pool would take all memory."""
    if device.type != "cuda" or config.num_pages is not None:
        return config
    return dataclasses.replace(config, num_pages=pages_for(workload, page_size=config.page_size))


def _measured(config: EngineConfig, measure: Callable[[torch.device], Outcome]) -> Measurement:
    start = Start.now()
    device = resolve_device(config)
    configure_threads(config, device)
    outcome = measure(device)
    where = {**circumstances(start), **device_circumstances(device)}
    return Measurement(outcome, where, tuple(start.notes()))


def device_circumstances(device: torch.device) -> Mapping[str, object]:
    """Return the device, JSON-ready."""
    is_cuda = device.type == "cuda"
    return {
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if is_cuda else cpu_name(),
        "torch_threads": torch.get_num_threads(),
    }


def _load(
    config: EngineConfig,
    workload: Workload,
    device: torch.device,
    *,
    observer: StepObserver | None = None,
) -> Built:
    built = load_engine(config, device=device, observer=observer)
    _require_room(workload, built.engine.info.served_max_len)
    return built


def _without_draft(config: EngineConfig, built: Built, device: torch.device) -> Built:
    """Build a second engine over the same target, with a separate pool and no draft."""
    return wire_engine(
        dataclasses.replace(config, draft=None, lookup="off"),
        target=built.target,
        draft=None,
        device=device,
    )


def _single_proposers(config: EngineConfig, built: Built, device: torch.device) -> dict[str, Built]:
    """Build engines over the same target that have one of both proposers each."""
    draft_only = dataclasses.replace(config, lookup="off")
    lookup_only = dataclasses.replace(config, draft=None)
    return {
        "draft only": wire_engine(
            draft_only,
            target=built.target,
            draft=built.draft,  # loading it again would miss a head that is quantised by now
            device=device,
        ),
        "lookup only": wire_engine(lookup_only, target=built.target, draft=None, device=device),
    }


def _require_room(workload: Workload, max_len: int) -> None:
    """Raise RequestRejected for a workload whose longest request does not fit."""
    max_new_tokens = workload.params.max_new_tokens
    for i, prompt in enumerate(workload.prompts):
        if len(prompt.token_ids) + max_new_tokens > max_len:
            raise RequestRejected(
                f"prompt {i} ({prompt.category}) has {len(prompt.token_ids)} tokens, and "
                f"{max_new_tokens} more are requested; the maximum context length of this model is "
                f"{max_len} tokens",
                param="max_new_tokens",
            )
