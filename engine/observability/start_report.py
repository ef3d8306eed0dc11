"""Formats the details of an engine as text, for the log at start and for `dspark doctor`.

Reads `EngineInfo.details` alone; importing this loads no torch.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from engine.model_setup.memory_plan import GIB, size_text

Row = tuple[str, str]  # label, text

_KERNELS = {
    "native": "CPU kernels",
    "torch": "PyTorch",
    "transformers": "transformers",
    "triton": "Triton kernels of its layers",
}
_STACKED = "one matrix product for all layers"


def start_rows(details: Mapping[str, Any]) -> list[Row]:
    """Format details that `describe` has made."""
    return [*_target_rows(details), *_draft_rows(details), *_memory_rows(details)]


def _target_rows(details: Mapping[str, Any]) -> Iterator[Row]:
    target = details["target"]
    check, steps = target["self_check"], target["small_steps"]
    count = details["torch_threads"]
    threads = f", {count} thread{'s' * (count != 1)}" if details["device"] == "cpu" else ""
    yield "device", f"{details['device']}, {details['dtype']}{threads}"
    quantised = "" if target["quantization"] == "none" else f", in {target['quantization']}"
    yield (
        "target",
        f"{target['type']} of {target['layers']} layers from {target['path']}{quantised}, up to "
        f"{target['max_model_len']} tokens",
    )
    yield (
        "self-check",
        f"over {check['tokens']} tokens logits differ from the model's own by at most "
        f"{check['logits_difference']:.1e} of the largest",
    )
    yield "target's steps", f"run by {_KERNELS[steps['path']]}{_because(steps['reason'])}"
    yield "attention", f"{details['attention']}{_because(details['attention_reason'])}"
    graphs = details["graphs"]
    capture_sizes = f"for batches of {_listed(graphs['tiers'])}" if graphs["tiers"] else "none"
    yield "graphs", f"{capture_sizes}{_because(graphs['reason'])}"


def _draft_rows(details: Mapping[str, Any]) -> Iterator[Row]:
    draft = details["draft"]
    yield from _lookup_rows(details["lookup"])
    if draft is None:
        yield "draft", "none" if details["lookup"] is not None else "none; plain decoding"
        return
    yield (
        "draft",
        f"{draft['layers']} layers from {draft['path']}, matrices in {draft['matrices']}, taps "
        f"{_listed(draft['tap_layers'])}",
    )
    yield (
        "draft blocks",
        f"{draft['block_size']} draft tokens, at most {draft['num_draft_tokens']} of them verified "
        "(anchor and bonus not counted)",
    )
    yield from _budget_rows(draft["budget"])
    yield from _confidence_rows(draft)
    passes, context_kv = draft["passes"], details["context_kv"]
    yield (
        "draft passes",
        f"run by {_KERNELS[passes['path']]}, tokens picked by {_KERNELS[passes['chain']]}"
        f"{_because(passes['reason'] or passes['chain_reason'])}",
    )
    yield (
        "context KV",
        f"{context_kv['path']} (mode {context_kv['mode']}): {context_kv['reason'] or _STACKED}",
    )


def _confidence_rows(draft: Mapping[str, Any]) -> Iterator[Row]:
    confidence = draft["confidence"]
    by = "calibrated" if draft["calibrated"] else "uncalibrated"
    if confidence["mode"] == "threshold":
        yield (
            "confidence",
            "draft tokens are verified while they survive with a probability of at least "
            f"{draft['confidence_threshold']:g}, by {by} confidences",
        )
    elif confidence["mode"] == "schedule":
        yield "confidence", f"schedule: {by} confidences give out a step's draft rows"
    elif confidence["reason"] is not None:
        yield "confidence", f"off{_because(confidence['reason'])}"


def _lookup_rows(lookup: Mapping[str, Any] | None) -> Iterator[Row]:
    if lookup is not None:
        size = lookup["shared_bytes"]
        shared = f", also in up to {size_text(size)} of other answers" if size else ""
        yield (
            "lookup",
            f"{lookup['mode']}: up to {lookup['max_tokens']} tokens that followed an earlier "
            f"occurrence of the last {lookup['min_match']} or more{shared}",
        )


def _budget_rows(budget: Mapping[str, Any]) -> Iterator[Row]:
    if budget["mode"] == "always":
        yield "draft budget", "always: every round verifies all its draft tokens"
        return
    most = ", ".join(
        f"{count} if tokens are accepted with probability {chance}"
        for chance, count in budget["most_sequences_by_chance"].items()
    )
    yield "draft budget", f"auto: drafts pay for so many sequences at once: {most}"
    for label, by, table in (
        ("target pass", "rows", budget["pass_ms_by_rows"]),
        ("single rows", "sequences", budget["single_row_pass_ms_by_sequences"]),
        ("draft pass", "sequences", budget["draft_ms_by_sequences"]),
    ):
        if table is not None:
            points = ", ".join(f"{size}: {ms:.3g}" for size, ms in table.items())
            yield label, f"milliseconds by number of {by}, as measured: {points}"


def _memory_rows(details: Mapping[str, Any]) -> Iterator[Row]:
    memory = details["memory"]
    sizes = {
        "target": memory["target_gib"],
        "draft": memory["draft_gib"],
        "largest step": memory["step_gib"],
        "graphs": memory["graphs_gib"],
    }
    # A part of no bytes, or one that is not measured here, has no entry.
    taken = [f"{name} {size_text(GIB * size)}" for name, size in sizes.items() if size]
    yield "memory", ", ".join([*taken, f"KV pool {size_text(GIB * memory['pool_gib'])}"])
    yield (
        "KV pool",
        f"{memory['num_pages']} pages of {memory['page_size']} tokens = {memory['tokens']} tokens, "
        f"by {memory['budget']}",
    )
    yield "longest request", f"{details['max_len']} tokens, prompt and output together"


def _because(reason: str | None) -> str:
    return f" ({reason})" if reason else ""


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
