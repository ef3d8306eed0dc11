"""Cores and memory are those that the process may use, not those of the host."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine import EngineConfig
from engine.platform import auto_settings, host
from engine.platform.auto_settings import configure_threads
from engine.platform.host import (
    CgroupLimits,
    available_cores,
    cgroup_limits,
    runnable_threads,
    why_too_busy,
    why_too_many_threads,
)


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")


def test_a_quota_on_any_group_above_counts(tmp_path: Path) -> None:
    root, membership = tmp_path / "cgroup", tmp_path / "self"
    write(membership, "0::/pod/container")
    write(root / "pod" / "cpu.max", "150000 100000")
    write(root / "pod" / "container" / "cpu.max", "max 100000")
    write(root / "pod" / "container" / "memory.max", "1073741824")
    write(root / "memory.max", "max")
    assert cgroup_limits(root=root, membership=membership) == CgroupLimits(1.5, 1 << 30)


def test_version_1_of_control_groups_is_read(tmp_path: Path) -> None:
    root, membership = tmp_path / "cgroup", tmp_path / "self"
    write(membership, "4:cpu,cpuacct:/job\n3:memory:/job")
    write(root / "cpu,cpuacct" / "job" / "cpu.cfs_quota_us", "200000")
    write(root / "cpu,cpuacct" / "job" / "cpu.cfs_period_us", "100000")
    write(root / "memory" / "job" / "memory.limit_in_bytes", "2147483648")
    assert cgroup_limits(root=root, membership=membership) == CgroupLimits(2.0, 2 << 30)


def test_no_limit_is_none(tmp_path: Path) -> None:
    root, membership = tmp_path / "cgroup", tmp_path / "self"
    write(membership, "4:cpu:/\n0::/")
    write(root / "cpu" / "cpu.cfs_quota_us", "-1")
    write(root / "memory.limit_in_bytes", str((1 << 63) - 4096))
    assert cgroup_limits(root=root, membership=membership) == CgroupLimits(None, None)
    assert cgroup_limits(root=root, membership=tmp_path / "absent") == CgroupLimits(None, None)


@pytest.mark.parametrize(("quota", "cores"), [(None, 8), (2.5, 2), (0.5, 1), (64.0, 8)])
def test_available_cores_are_the_smaller_of_mask_and_quota(
    quota: float | None, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "affinity_cores", lambda: 8)
    monkeypatch.setattr(host, "cgroup_limits", lambda: CgroupLimits(quota, None))
    assert available_cores() == cores


def test_a_version_is_known_without_importing_the_package() -> None:
    script = (
        "import sys; from engine.platform.host import installed_version; "
        "assert installed_version('torch') and not installed_version('no-such-thing'); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    ("variable", "config", "threads"), [("3", None, 3), ("3", 2, 2), ("x", 2, 2)]
)
def test_threads_are_those_of_the_config_else_those_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, variable: str, config: int | None, threads: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    before = torch.get_num_threads()
    try:
        found = configure_threads(EngineConfig(target="t", num_threads=config), torch.device("cpu"))
        assert found == torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_threads_beyond_the_cores_are_explained_with_the_settings_to_change() -> None:
    assert why_too_many_threads(num_threads=2, cores=2) is None
    reason = why_too_many_threads(num_threads=8, cores=2)
    assert reason is not None
    assert "8 threads for 2 usable cores" in reason
    assert "device.num_threads or OMP_NUM_THREADS" in reason


def test_a_load_beyond_the_machines_cores_is_explained() -> None:
    assert why_too_busy(load=3.9, runnable=9, machine_cores=4) is None
    assert why_too_busy(load=None, runnable=9, machine_cores=4) is None
    reason = why_too_busy(load=4.5, runnable=5, machine_cores=4)
    assert reason is not None
    assert "load average is 4.5 on a machine of 4 cores and 5 runnable threads" in reason


def test_a_load_average_of_finished_work_is_no_reason() -> None:
    assert why_too_busy(load=9.0, runnable=4, machine_cores=4) is None


def test_without_a_count_of_threads_the_load_average_decides() -> None:
    assert why_too_busy(load=4.5, runnable=None, machine_cores=4) is not None


def test_the_calling_thread_is_not_counted_as_runnable(tmp_path: Path) -> None:
    file = tmp_path / "loadavg"
    assert runnable_threads(file=file) is None
    write(file, "3.58 2.72 1.77 6/113 9104")
    assert runnable_threads(file=file) == 5
    write(file, "0.00 0.00 0.00 0/0 0")
    assert runnable_threads(file=file) == 0
    write(file, "garbage")
    assert runnable_threads(file=file) is None


def test_more_threads_than_cores_are_warned_of_at_the_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(auto_settings, "available_cores", lambda: 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with caplog.at_level("WARNING", logger="engine.platform.auto_settings"):
        configure_threads(EngineConfig(target="t"), torch.device("cpu"))
        assert caplog.messages == []
        configure_threads(EngineConfig(target="t", num_threads=3), torch.device("cpu"))
    (message,) = caplog.messages
    assert message.startswith("3 threads for 1 usable cores")
