"""From settings to what the engine takes: `auto` becomes None, names line up."""

from typing import Literal

from engine import EngineConfig
from server.settings.schema import Settings, SpeculativeSection

_SCHEDULE: dict[str, Literal["auto", "on", "off"]] = {
    "auto": "auto",
    "schedule": "on",
    "threshold": "off",
    "off": "off",
}


def to_engine_config(settings: Settings) -> EngineConfig:
    """The engine's config. A `demo:` target is passed on as named; the caller resolves it first."""
    model, speculative, kv, scheduler = (
        settings.model,
        settings.speculative,
        settings.kv,
        settings.scheduler,
    )
    confidence = speculative.confidence
    return EngineConfig(
        target=model.path,
        target_revision=model.revision,
        dtype=model.dtype,
        quantization=model.quantization,
        device=settings.device.type,
        trust_remote_code=model.trust_remote_code,
        max_model_len=count_or_none(model.max_model_len),
        draft=speculative.draft_model if speculative.algorithm == "dspark" else None,
        draft_revision=speculative.draft_revision,
        draft_dtype=speculative.draft_dtype,
        allow_other_target=speculative.allow_other_target,
        num_draft_tokens=count_or_none(speculative.num_draft_tokens),
        draft_budget=speculative.draft_budget,
        lookup=_lookup_mode(speculative),
        lookup_tokens=speculative.lookup.max_tokens,
        lookup_min_match=speculative.lookup.min_match,
        lookup_shared_bytes=(
            speculative.lookup.shared_mib << 20 if speculative.lookup.shared == "on" else 0
        ),
        confidence_threshold=confidence.threshold if confidence.mode == "threshold" else None,
        confidence_schedule=_SCHEDULE[confidence.mode],
        stacked_context_kv=speculative.stacked_context_kv,
        page_size=kv.page_size,
        num_pages=count_or_none(kv.num_pages),
        memory_gib=kv.memory_gib,
        memory_fraction=kv.memory_fraction,
        prefix_cache=kv.prefix_cache,
        attention_backend=settings.attention.backend,
        max_running_requests=scheduler.max_running_requests,
        max_queued_requests=scheduler.max_queued_requests,
        policy=scheduler.policy,
        priority_order=scheduler.priority_order,
        priority_aging_s=scheduler.priority_aging_s,
        prefill_chunk_tokens=scheduler.prefill_chunk_tokens,
        num_threads=count_or_none(settings.device.num_threads),
        native_kernels=settings.device.native_kernels,
        graphs=settings.device.graphs,
    )


def count_or_none(value: int | Literal["auto"]) -> int | None:
    """The count, or None for auto."""
    return None if value == "auto" else value


def _lookup_mode(speculative: SpeculativeSection) -> Literal["auto", "on", "off"]:
    """Resolve the mode: rounds of whole draft blocks leave no choice to `auto`."""
    has_choice = speculative.algorithm == "lookup" or speculative.draft_budget == "auto"
    mode = speculative.lookup.mode
    if speculative.algorithm == "none" or (mode == "auto" and not has_choice):
        return "off"
    return mode
