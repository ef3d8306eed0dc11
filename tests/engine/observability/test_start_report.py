"""What an engine tells about itself, in sentences."""

from pathlib import Path
from typing import Any

import pytest

from engine.observability.engine_info import log_start
from engine.observability.start_report import start_rows
from tests.support.engine.tiny_models import tiny_engine, write_tiny_draft


def report(**settings: Any) -> dict[str, str]:
    """Each label is there once."""
    details = tiny_engine(native_kernels="off", **settings).engine.info.details
    rows = start_rows(details)
    assert len(dict(rows)) == len(rows)
    return dict(rows)


def test_every_path_is_told_with_its_reason(tmp_path: Path) -> None:
    told = report(draft_folder=write_tiny_draft(tmp_path, block_size=4), draft_budget="auto")
    assert told["device"].startswith("cpu, float32, ")
    assert told["target"].startswith("LlamaForCausalLM of 5 layers from tiny, up to ")
    assert told["target's steps"] == "run by transformers (switched off)"
    assert told["attention"] == "reference (triton's kernels are for CUDA)"
    assert told["graphs"] == "none (graphs are for CUDA)"
    assert told["draft blocks"].startswith("4 draft tokens, of which 4 are verified at most")
    assert told["draft budget"].startswith("auto: most sequences at once for which drafts pay: ")
    assert told["target pass"].startswith("milliseconds by rows, as measured: 1: ")
    assert told["draft pass"].startswith("milliseconds by sequences, as measured: 1: ")
    assert told["draft passes"] == "run by PyTorch, tokens picked by PyTorch (switched off)"
    assert told["context KV"].startswith("stacked (mode auto): one product ")


def test_memory_is_told_in_units_that_show_it_and_nothing_of_what_is_not_there(
    tmp_path: Path,
) -> None:
    told = report(draft_folder=write_tiny_draft(tmp_path))
    parts = [part.split()[-1] for part in told["memory"].split(", ")]
    assert parts == ["MiB"] * 3
    assert "0 MiB" not in told["memory"].split(", ")
    assert "step" not in told["memory"]
    assert told["KV pool"] == "128 pages of 4 tokens = 512 tokens, by kv.num_pages=128"


def test_without_a_draft_nothing_is_said_of_drafting() -> None:
    told = report()
    assert told["draft"] == "none; plain decoding"
    assert not {"draft budget", "draft passes", "context KV"} & set(told)


def test_the_log_at_start_says_the_same(caplog: pytest.LogCaptureFixture) -> None:
    details: Any = tiny_engine().engine.info.details
    with caplog.at_level("INFO", logger="engine.observability.engine_info"):
        log_start(details)
    assert caplog.messages == [f"{about}: {said}" for about, said in start_rows(details)]
