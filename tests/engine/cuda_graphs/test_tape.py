"""A tape replays operators as a CUDA graph does."""

import pytest
import torch
from torch import Tensor

from engine.cuda_graphs.capture import Recording
from engine.cuda_graphs.tape import TapeCapturer


def test_a_replay_computes_on_the_inputs_current_values() -> None:
    x = torch.ones(3)
    recording = TapeCapturer().capture(lambda: (x * 2).cumsum(0) + x[1:].sum())
    assert recording.outputs.tolist() == [4.0, 6.0, 8.0]
    x.copy_(torch.tensor([1.0, 2.0, 3.0]))
    kept = recording.outputs
    recording.replay()
    assert kept.tolist() == [7.0, 11.0, 17.0]


def test_a_replay_writes_where_the_recording_wrote() -> None:
    pool, slots, values = torch.zeros(5), torch.tensor([1, 2]), torch.ones(2)

    def store() -> Tensor:
        pool[slots] = values
        return pool[slots].clone()

    recording = TapeCapturer().capture(store)
    slots.copy_(torch.tensor([4, 0]))
    values.mul_(7)
    recording.replay()
    assert pool.tolist() == [7.0, 1.0, 1.0, 0.0, 7.0]
    assert recording.outputs.tolist() == [7.0, 7.0]


def test_decisions_in_python_are_fixed_by_the_capture() -> None:
    factor = [2.0]
    x = torch.ones(2)
    recording = TapeCapturer().capture(lambda: x * factor[0])
    factor[0] = 100.0
    recording.replay()
    assert recording.outputs.tolist() == [2.0, 2.0]


def test_reading_a_value_on_the_host_is_an_error() -> None:
    x = torch.ones(2)
    with pytest.raises(RuntimeError, match="reads a value on the host"):
        TapeCapturer().capture(lambda: x * x.sum().item())
    with pytest.raises(RuntimeError, match="reads a value on the host"):
        TapeCapturer().capture(lambda: x[x > 0])


def test_a_replay_overwrites_the_outputs_of_later_recordings_only() -> None:
    """Graphs share their memory: an output may lie where an earlier one has its intermediates."""
    x, capturer = torch.ones(2), TapeCapturer()
    first, second, third = (capturer.capture(lambda n=n: (x + n, [x.long() + n])) for n in range(3))
    for recording in (first, second, third):
        recording.replay()
    second.replay()
    assert [first.outputs[0].tolist(), second.outputs[0].tolist()] == [[1.0, 1.0], [2.0, 2.0]]
    assert third.outputs[0].isnan().all()
    assert third.outputs[1][0].tolist() == [torch.iinfo(torch.long).max] * 2
    third.replay()
    assert third.outputs[0].tolist() == [3.0, 3.0]


def test_a_recording_keeps_the_functions_tensors_alive() -> None:
    """As on CUDA, where a graph has only addresses."""

    def capture_over_local_rows() -> Recording[Tensor]:
        rows = torch.tensor([2, 0])
        return TapeCapturer().capture(lambda: x[rows] * 2)

    x = torch.tensor([1.0, 2.0, 3.0])
    recording = capture_over_local_rows()
    recording.replay()
    assert recording.outputs.tolist() == [6.0, 2.0]


def test_a_replay_fails_if_a_tensor_from_outside_is_gone() -> None:
    found = [torch.ones(2)]
    recording = TapeCapturer().capture(lambda: found[0] * 2)
    recording.replay()
    found.clear()
    with pytest.raises(RuntimeError, match="no longer exists"):
        recording.replay()
