"""Cores and memory are what the process is allowed, not what the host has."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine import EngineConfig
from engine.platform import auto_settings as resolve
from engine.platform import host as machine
from engine.platform.auto_settings import configure_threads
from engine.platform.host import (
    CgroupLimits,
    available_cores,
    cgroup_limits,
    computing_now,
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


def test_the_first_version_of_control_groups_is_understood(tmp_path: Path) -> None:
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
    monkeypatch.setattr(machine, "affinity_cores", lambda: 8)
    monkeypatch.setattr(machine, "cgroup_limits", lambda: CgroupLimits(quota, None))
    assert available_cores() == cores


def test_a_version_is_known_without_importing_the_package() -> None:
    script = (
        "import sys; from engine.platform.host import installed_version; "
        "assert installed_version('torch') and not installed_version('no-such-thing'); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(("asked", "config", "threads"), [("3", None, 3), ("3", 2, 2), ("x", 2, 2)])
def test_threads_are_those_of_the_config_else_those_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, asked: str, config: int | None, threads: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    before = torch.get_num_threads()
    try:
        found = configure_threads(EngineConfig(target="t", num_threads=config), torch.device("cpu"))
        assert found == torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_threads_beyond_the_cores_are_told_with_what_to_do() -> None:
    assert why_too_many_threads(num_threads=2, cores=2) is None
    told = why_too_many_threads(num_threads=8, cores=2)
    assert told is not None
    assert told.startswith("8 threads for 2 usable cores: ")
    assert told.endswith("set device.num_threads or OMP_NUM_THREADS to 2 at most")


def test_a_load_beyond_the_machines_cores_is_told() -> None:
    assert why_too_busy(load=3.9, computing=9, machine_cores=4) is None
    assert why_too_busy(load=None, computing=9, machine_cores=4) is None
    told = why_too_busy(load=4.5, computing=5, machine_cores=4)
    assert told is not None
    assert told.startswith(
        "the load average is 4.5 on a machine of 4 cores and 5 threads want to compute right now: "
    )


def test_a_load_of_work_that_is_over_is_not_told() -> None:
    assert why_too_busy(load=9.0, computing=4, machine_cores=4) is None


def test_where_nobody_tells_what_computes_now_the_load_average_decides() -> None:
    told = why_too_busy(load=4.5, computing=None, machine_cores=4)
    assert told is not None
    assert told.startswith("the load average is 4.5 on a machine of 4 cores: ")


def test_what_computes_now_leaves_out_the_one_who_asks(tmp_path: Path) -> None:
    file = tmp_path / "loadavg"
    assert computing_now(file=file) is None
    write(file, "3.58 2.72 1.77 6/113 9104")
    assert computing_now(file=file) == 5
    write(file, "0.00 0.00 0.00 0/0 0")
    assert computing_now(file=file) == 0
    write(file, "garbage")
    assert computing_now(file=file) is None


def test_more_threads_than_cores_are_a_warning_at_the_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resolve, "available_cores", lambda: 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with caplog.at_level("WARNING", logger="engine.platform.auto_settings"):
        configure_threads(EngineConfig(target="t"), torch.device("cpu"))
        assert caplog.messages == []
        configure_threads(EngineConfig(target="t", num_threads=3), torch.device("cpu"))
    (message,) = caplog.messages
    assert message.startswith("3 threads for 1 usable cores")
