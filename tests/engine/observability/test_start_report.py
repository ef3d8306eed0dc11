"""The start report names every chosen path with its reason."""

from pathlib import Path
from typing import Any

from engine.observability.start_report import start_rows
from tests.support.engine.tiny_models import tiny_engine, write_tiny_draft


def report(**settings: Any) -> dict[str, str]:
    """Build an engine; the start report's texts by their labels, each of which occurs once."""
    details = tiny_engine(native_kernels="off", **settings).engine.info.details
    rows = start_rows(details)
    assert len(dict(rows)) == len(rows)
    return dict(rows)


def test_every_path_has_its_reason(tmp_path: Path) -> None:
    rows = report(draft_folder=write_tiny_draft(tmp_path, block_size=4), draft_budget="auto")
    assert rows["device"].startswith("cpu, float32, ")
    assert rows["target"].startswith("LlamaForCausalLM of 5 layers from tiny, up to ")
    assert rows["target's steps"] == "run by transformers (switched off)"
    assert rows["attention"] == "reference (triton's kernels are for CUDA)"
    assert rows["graphs"] == "none (graphs are for CUDA)"
    assert rows["draft blocks"].startswith("4 draft tokens, at most 4 of them verified")
    assert rows["draft budget"].startswith("auto: ")
    assert {"target pass", "draft pass"} <= set(rows)
    assert rows["draft passes"] == "run by PyTorch, tokens picked by PyTorch (switched off)"
    assert rows["context KV"].startswith("stacked (mode auto): ")


def test_what_confidences_do_is_named(tmp_path: Path) -> None:
    with_head = write_tiny_draft(tmp_path / "with")
    without = write_tiny_draft(tmp_path / "without", enable_confidence_head=False)

    def row(**settings: Any) -> str | None:
        return report(**{"draft_budget": "auto", **settings}).get("confidence")

    auto = {"confidence_schedule": "auto"}
    schedule = "schedule: uncalibrated confidences give out a step's draft rows"
    assert row(draft_folder=with_head, **auto) == schedule
    assert row(draft_folder=without, **auto) == "off (the draft has no confidence head)"
    always = row(draft_folder=with_head, **auto, draft_budget="always")
    assert always == "off (every round verifies all its draft tokens)"
    assert row(draft_folder=with_head) is None


def test_parts_without_memory_have_no_entry(
    tmp_path: Path,
) -> None:
    rows = report(draft_folder=write_tiny_draft(tmp_path))
    parts = [part.split()[-1] for part in rows["memory"].split(", ")]
    assert parts == ["MiB"] * 3
    assert "0 MiB" not in rows["memory"].split(", ")
    assert "step" not in rows["memory"]
    assert rows["KV pool"] == "128 pages of 4 tokens = 512 tokens, by kv.num_pages=128"


def test_without_a_draft_there_are_no_rows_about_drafting() -> None:
    rows = report()
    assert rows["draft"] == "none; plain decoding"
    assert not {"draft budget", "draft passes", "context KV"} & set(rows)
