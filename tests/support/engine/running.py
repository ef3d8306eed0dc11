"""Runs built engines to the end; generates with the target alone."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

import torch

from draft import BlockRequest, DraftBlock, DSparkProposer
from dspark.bench.compare.identity import generate_reference
from engine import EngineSamplingParams, Finish, Request, TokenEvent, TokenLogprob
from engine.build import Built
from engine.loading.target import LoadedTarget


def prompts(
    count: int, *, vocab: int, seed: int = 5, low: int = 2, high: int = 40
) -> list[list[int]]:
    """Random prompts of different lengths, without the end-of-sequence id 0."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(low, high, (count,), generator=generator).tolist()
    return [torch.randint(1, vocab - 1, (n,), generator=generator).tolist() for n in lengths]


def seeded_among_others(
    given: Sequence[Sequence[int]], *, max_new_tokens: int, temperature: float
) -> tuple[list[Request], list[Request]]:
    """Return every fourth prompt as a seeded request, and the others without a seed.

    temperature: of the seeded ones; the others alternate between 0 and 1.
    """
    requests: tuple[list[Request], list[Request]] = ([], [])
    for i, prompt in enumerate(given):
        is_other = i % 4 > 0
        params = EngineSamplingParams(
            max_new_tokens=max_new_tokens,
            temperature=float(i % 2) if is_other else temperature,
            seed=None if is_other else i,
        )
        requests[is_other].append(Request(str(i), tuple(prompt), params))
    return requests


def run_all(
    built: Built, requests: Sequence[Request], *, max_steps: int = 5000
) -> dict[str, tuple[list[int], Finish]]:
    """All requests at once, to their ends: ids and finish by request id."""
    engine = built.engine
    ids: dict[str, list[int]] = {r.request_id: [] for r in requests}
    finishes: dict[str, Finish] = {}
    with torch.inference_mode():
        for request in requests:
            engine.add(request)
        for _ in range(max_steps):
            if engine.is_idle:
                break
            for event in engine.step():
                ids[event.request_id] += event.token_ids
                if event.finish is not None:
                    assert event.request_id not in finishes
                    finishes[event.request_id] = event.finish
    assert engine.is_idle
    assert engine.snapshot().num_used_pages == 0
    return {name: (ids[name], finishes[name]) for name in ids}


@dataclass
class Answered:
    """Collects the events of one request."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    events: list[TokenEvent] = field(default_factory=list)

    @property
    def finish(self) -> Finish:
        (finish,) = [event.finish for event in self.events if event.finish is not None]
        return finish


def run_told(
    built: Built, requests: Sequence[Request], *, max_steps: int = 5000
) -> dict[str, Answered]:
    """All requests at once, to their ends, with everything that came in their events."""
    answers = {request.request_id: Answered() for request in requests}
    with torch.inference_mode():
        for request in requests:
            built.engine.add(request)
        for _ in range(max_steps):
            if built.engine.is_idle:
                break
            for event in built.engine.step():
                answer = answers[event.request_id]
                answer.events.append(event)
                answer.ids += event.token_ids
                answer.logprobs += event.logprobs
                answer.prompt_logprobs += event.prompt_logprobs
    assert built.engine.is_idle
    assert built.engine.snapshot().num_used_pages == 0
    return answers


def generate_alone(target: LoadedTarget, prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    """Generate greedily with transformers."""
    return list(generate_reference(target, prompt, max_new_tokens=max_new_tokens))


def greedy_requests(all_prompts: Sequence[Sequence[int]], max_new_tokens: int) -> list[Request]:
    return [
        Request(str(i), tuple(p), EngineSamplingParams(max_new_tokens=max_new_tokens))
        for i, p in enumerate(all_prompts)
    ]


@contextmanager
def oracle(texts: Sequence[Sequence[int]], *, good: int, vocab: int) -> Iterator[None]:
    """Draft `good` correct tokens and then wrong ones, for any sequence.

    texts are whole sequences, prompt and output. Only the guess is replaced: context is still
    written, so everything else of a step is real.
    """
    after = {
        (position, text[position]): list(text[position + 1 :])
        for text in texts
        for position in range(len(text))
    }

    def propose(self: DSparkProposer, request: BlockRequest) -> DraftBlock:
        size = self.block_size
        rows = []
        keys = zip(request.context_lens, request.anchor_ids.tolist(), strict=True)
        for position, anchor in keys:
            right = after.get((position, anchor), [])[:size]
            right += [1] * (size - len(right))
            rows.append(right[:good] + [(t + 1) % vocab for t in right[good:]])
        ids = torch.tensor(rows)
        probs = None
        if request.sampling is not None:
            probs = torch.nn.functional.one_hot(ids[request.sampling.rows], vocab).float()
        return DraftBlock(draft_ids=ids, draft_probs=probs, confidence_logits=None)

    with patch.object(DSparkProposer, "propose", propose):
        yield
