import torch

from dspark.bench.compare.throughput import measure_throughput
from dspark.bench.running import benchmark_reports, pages_for, sized_for_two
from engine import EngineConfig
from tests.support.bench.runs import silent, workload
from tests.support.engine.tiny_models import CPU, tiny_engine


def test_the_computed_pages_avoid_preemption() -> None:
    load = workload(6, max_tokens=20, concurrency=3)
    engine = tiny_engine(num_pages=pages_for(load, page_size=4), page_size=4)
    found = measure_throughput(engine, load, trials=1, report=silent)
    assert found.arm.spread("preemptions").median == 0
    assert found.arm.spread("requests").median == 6


def test_two_pools_on_a_gpu_have_the_size_of_the_workload() -> None:
    load, config = workload(2), EngineConfig(target="t", page_size=16)
    on_cuda = sized_for_two(config, load, torch.device("cuda"))
    assert on_cuda.num_pages == pages_for(load, page_size=16)
    assert sized_for_two(config, load, CPU) == config
    exact = EngineConfig(target="t", num_pages=7)
    assert sized_for_two(exact, load, torch.device("cuda")) == exact


def test_reports_are_counted_beforehand() -> None:
    assert benchmark_reports(None, trials=3) == 4
    assert benchmark_reports("speculation", trials=3) == 8
    assert benchmark_reports("speculation", trials=3, by_proposer=True) == 16
    assert benchmark_reports("stacked", trials=3) == 9  # the context writes alone come first
    assert benchmark_reports("transformers", trials=3) == 12
    assert benchmark_reports("transformers", trials=3, has_draft=False) == 8
