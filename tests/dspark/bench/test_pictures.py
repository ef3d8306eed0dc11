"""Pictures show the values of the result files, and that of the README is the newest."""

import json
from pathlib import Path

import pytest

from dspark.bench.pictures import (
    PICTURE,
    RESULTS,
    Bar,
    Panel,
    draft_panel,
    draw,
    main,
    newest,
    server_panels,
)


def _spread(median: float) -> dict[str, float]:
    return {"median": median, "min": median - 1, "max": median + 2}


def test_every_server_has_a_bar_for_each_load() -> None:
    contenders = {
        "plain": {"about": "this server, native kernels"},
        "other": {"about": "Other 1.2 with everything, plain decoding"},
        "other Q8_0": {"about": "Other 1.2, weights of 8 bits"},
    }
    servers = {name: {"output_throughput": _spread(40)} for name in contenders}
    loads = [{"streams": streams, "servers": servers} for streams in (1, 16)]
    one, many = server_panels({"contenders": contenders, "loads": loads})
    assert one.title.startswith("1 stream,")
    assert many.title.startswith("16 streams,")
    assert one.bars == (
        Bar("this server, plain", 40, 39, 42, is_ours=True),
        Bar("Other 1.2", 40, 39, 42, is_ours=False),
        Bar("Other 1.2 Q8_0", 40, 39, 42, is_ours=False),
    )


def test_categories_are_sorted_by_speedup() -> None:
    categories = {
        "chat": {"accept_length": 1.3, "speedup_decode_only": _spread(1.2)},
        "code": {"accept_length": 1.8, "speedup_decode_only": _spread(1.7)},
    }
    panel = draft_panel({"categories": categories})
    names = [bar.name for bar in panel.bars]
    assert names == ["code (1.80 tokens a round)", "chat (1.30 tokens a round)"]
    assert panel.line_at == 1.0


def test_a_picture_has_its_values_and_source_and_is_reproducible(
    tmp_path: Path,
) -> None:
    panels = [
        Panel("speed", (Bar("ours", 58.2, 57, 60), Bar("theirs", 29.4, 29, 30)), decimals=0),
        Panel("gain", (Bar("code", 1.634, 1.5, 1.8),), decimals=2, line_at=1.0),
    ]
    files = tmp_path / "a.svg", tmp_path / "b.svg"
    for file in files:
        draw(panels, file, caption="on 2 cores", source="one.json two.json")
    first, second = (file.read_text() for file in files)
    assert first == second
    for text in (
        "58",
        "29",
        "1.63",
        "ours",
        "theirs",
        "speed",
        "gain",
        "on 2 cores",
        "one.json two.json",
    ):
        assert f">{text}<" in first.replace(">  ", ">"), text


def test_the_newest_result_is_the_last_by_the_date_in_its_name(tmp_path: Path) -> None:
    for name in ("peers-20260102-000000", "peers-20260101-235959", "peers-notes-20270101-000000"):
        (tmp_path / f"bench-{name}.json").write_text("{}")
    assert newest("peers", tmp_path).name == "bench-peers-20260102-000000.json"


def test_missing_results_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--results", str(tmp_path), "--output", str(tmp_path / "x.svg")]) == 1
    assert "no bench-peers-*.json" in capsys.readouterr().err
    assert not (tmp_path / "x.svg").exists()


def test_the_picture_of_the_readme_is_of_the_newest_results() -> None:
    sources = [newest(kind, RESULTS) for kind in ("peers", "speculation")]
    shown = PICTURE.read_text(encoding="utf-8")
    assert " ".join(file.name for file in sources) in shown, "run make docs"
    categories = json.loads(sources[1].read_text())["categories"].values()
    for category in categories:
        assert f"{category['speedup_decode_only']['median']:.2f}<" in shown
    assert PICTURE.relative_to(RESULTS.parent.parent).as_posix() in (
        RESULTS.parent.parent / "README.md"
    ).read_text(encoding="utf-8")
