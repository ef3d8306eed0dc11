from collections.abc import Mapping

from dspark.bench.compare.arms import Arm, run_interleaved
from dspark.bench.workloads.interleaving import num_reports
from dspark.bench.workloads.trial import Trial, Workload
from tests.support.bench.runs import workload
from tests.support.engine.tiny_models import tiny_engine, tiny_target


def turns_of(load: Workload) -> tuple[str, list[str], Mapping[str, list[Trial]]]:
    """Return the order of arms with warm-ups, the reported labels and three trials."""
    engine = tiny_engine().engine
    order: list[str] = []
    labels: list[str] = []
    arms = [Arm(name, engine, lambda name=name: order.append(name)) for name in "AB"]
    done = run_interleaved(arms, load, trials=3, report=labels.append)
    return "".join(order), labels, done


def test_arms_are_interleaved_in_alternating_order() -> None:
    order, labels, done = turns_of(workload(2, max_tokens=2, concurrency=2))
    assert order == "AB" + "AB" + "BA" + "AB"  # a warm-up of each comes first
    assert {name: len(trials) for name, trials in done.items()} == {"A": 3, "B": 3}
    assert labels[:3] == ["warm-up: A", "warm-up: B", "trial 1 of 3: A"]
    assert len(labels) == num_reports(num_arms=2, trials=3)


def test_one_stream_changes_arms_after_every_prompt_and_its_trial_is_whole() -> None:
    load = workload(3, max_tokens=2, high=6)  # a step for each token
    order, labels, done = turns_of(load)
    assert order == "AB" + "ABBAAB" + "BAABBA" + "ABBAAB"
    assert len(labels) == num_reports(num_arms=2, trials=3)
    for trial in (trial for trials in done.values() for trial in trials):
        prompts = [run.request.prompt_ids for run in trial.runs]
        assert prompts == [prompt.token_ids for prompt in load.prompts]
        assert trial.categories == ("chat", "code", "chat")
        own_steps = sum(len(run.event_times) for run in trial.runs)
        assert trial.counts.num_steps == own_steps  # of an engine that the other arm shares
        slowest = max(run.ended_at - run.started_at for run in trial.runs)
        assert slowest < trial.seconds < 3 * slowest + 1
        assert sum(trial.counts.stage_seconds.values()) < trial.seconds


def test_the_warm_up_is_short_and_as_wide_as_the_trials() -> None:
    engine = tiny_engine(target=tiny_target(has_eos=False)).engine
    run_interleaved(
        [Arm("A", engine)],
        workload(6, max_tokens=20, concurrency=3, high=6),
        trials=1,
        report=lambda label: None,
    )
    assert engine.snapshot().finished == {"length": 3 + 6}
    assert engine.snapshot().num_output_tokens == 3 * 16 + 6 * 20


def test_every_trial_starts_with_an_empty_prefix_cache() -> None:
    engine = tiny_engine().engine
    load = workload(2, max_tokens=8, low=24)
    (trials,) = run_interleaved(
        [Arm("A", engine)], load, trials=3, report=lambda label: None
    ).values()
    assert [t.counts.num_cached_tokens for t in trials] == [0, 0, 0]
    assert engine.snapshot().num_cached_pages > 0  # not empty without the flush


def test_a_trial_keeps_the_order_of_its_prompts_at_any_concurrency() -> None:
    engine = tiny_engine().engine
    load = workload(5, max_tokens=6, concurrency=4)
    (trials,) = run_interleaved(
        [Arm("A", engine)], load, trials=1, report=lambda label: None
    ).values()
    prompts = [run.request.prompt_ids for run in trials[0].runs]
    assert prompts == [prompt.token_ids for prompt in load.prompts]
    assert trials[0].categories == ("chat", "code", "chat", "code", "chat")
