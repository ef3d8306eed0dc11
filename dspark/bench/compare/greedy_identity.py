"""Verifies the greedy text of an engine with transformers' generate, prompt by prompt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dspark.bench.compare.identity import Comparison, compare_greedy, generate_reference
from dspark.bench.report.columns import columns
from dspark.bench.workloads.interleaving import Report
from dspark.bench.workloads.prompts import EncodedPrompt
from engine.build import Built
from engine.errors import LoadError

# Settings that change generate(do_sample=False), and their neutral values.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "num_beams": (None, 1),
    "min_length": (None, 0),
    "min_new_tokens": (None, 0),
    "no_repeat_ngram_size": (None, 0),
    "encoder_no_repeat_ngram_size": (None, 0),
    "encoder_repetition_penalty": (None, 1.0),
    "bad_words_ids": (None, []),
    "suppress_tokens": (None, []),
    "begin_suppress_tokens": (None, []),
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
    "sequence_bias": (None, {}, []),
    "exponential_decay_length_penalty": (None,),
    "guidance_scale": (None, 1.0),
    "watermarking_config": (None,),
    "penalty_alpha": (None, 0.0),
    "dola_layers": (None,),
    "stop_strings": (None, []),
    "max_time": (None,),
    "token_healing": (None, False),
}


@dataclass(frozen=True, slots=True)
class Verification:
    """The outcome of every prompt, in order."""

    categories: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    num_rounds: int
    num_accepted: int
    is_guaranteed: bool  # float32

    @property
    def holds(self) -> bool:
        return all(comparison.holds for comparison in self.comparisons)

    @property
    def accept_length(self) -> float:
        """Mean over all rounds, including the bonus; 1 without a draft."""
        return 1 + self.num_accepted / self.num_rounds if self.num_rounds else 1.0

    def count(self, outcome: str) -> int:
        return sum(outcome_of(comparison) == outcome for comparison in self.comparisons)

    def lines(self) -> list[str]:
        """Return a line per prompt, then the totals."""
        rows = [("prompt", "category", "outcome", "tokens", "accept length", "at")]
        for i, (category, comparison) in enumerate(
            zip(self.categories, self.comparisons, strict=True)
        ):
            length = f"{comparison.accept_length:.2f}" if comparison.accept_length else "-"
            tokens = str(len(comparison.found_ids))
            where = "" if comparison.difference is None else comparison.difference.describe()
            rows.append((str(i), category, outcome_of(comparison), tokens, length, where))
        return [*columns(rows), "", *self._totals()]

    def values(self) -> Mapping[str, object]:
        return {
            "prompts": len(self.comparisons),
            "identical": self.count("ok"),
            "ties": self.count("tie"),
            "different": self.count("DIFFERENT"),
            "output_tokens": sum(len(c.found_ids) for c in self.comparisons),
            "accept_length_mean": self.accept_length,
            "results": [
                _result(category, comparison)
                for category, comparison in zip(self.categories, self.comparisons, strict=True)
            ],
        }

    def _totals(self) -> list[str]:
        lines = [
            f"{len(self.comparisons)} prompts: {self.count('ok')} ok, {self.count('tie')} ties, "
            f"{self.count('DIFFERENT')} different; mean accept length {self.accept_length:.2f}"
        ]
        if not self.is_guaranteed:
            lines.append(
                "identity is guaranteed in float32 only: in lower precision the number of rows in "
                "a step changes the logits"
            )
        return lines


def verify_greedy_identity(
    built: Built,
    prompts: Sequence[EncodedPrompt],
    *,
    max_new_tokens: int,
    concurrency: int,
    report: Report,
) -> Verification:
    """Run transformers, then the engine, and compare.

    Raises LoadError if the target's generation config changes greedy decoding, and
    RequestRejected for a prompt that cannot be served.
    """
    refuse_other_decoding(getattr(built.target.model, "generation_config", None))
    references = []
    for i, prompt in enumerate(prompts):
        report(f"reference {i + 1} of {len(prompts)}")
        references.append(
            generate_reference(built.target, prompt.token_ids, max_new_tokens=max_new_tokens)
        )
    report("engine")
    before = built.engine.snapshot()
    comparisons = compare_greedy(
        built.engine,
        built.target,
        [prompt.token_ids for prompt in prompts],
        references=references,
        max_new_tokens=max_new_tokens,
        concurrency=concurrency,
    )
    after = built.engine.snapshot()
    return Verification(
        categories=tuple(prompt.category for prompt in prompts),
        comparisons=tuple(comparisons),
        num_rounds=after.num_rounds - before.num_rounds,
        num_accepted=after.num_accepted_tokens - before.num_accepted_tokens,
        is_guaranteed=built.target.dtype == torch.float32,
    )


def refuse_other_decoding(generation: Any) -> None:
    """Raise LoadError if generate(do_sample=False) would not always take the best token.

    A repetition penalty is accepted: the reference is generated without it.
    """
    for name, neutral in _NEUTRAL.items():
        found = getattr(generation, name, None)
        if found not in neutral:
            raise LoadError(
                f"generation_config.json: {name}: found {found!r}, which changes greedy decoding; "
                f"accepted: {neutral[-1]!r} or unset"
            )


def outcome_of(comparison: Comparison) -> str:
    return "ok" if comparison.difference is None else comparison.difference.kind


def _result(category: str, comparison: Comparison) -> dict[str, object]:
    found = comparison.difference
    result: dict[str, object] = {
        "category": category,
        "outcome": outcome_of(comparison),
        "tokens": len(comparison.found_ids),
        "accept_length": comparison.accept_length,
    }
    if found is not None:
        result |= {
            "position": found.position,
            "expected_id": found.expected_id,
            "found_id": found.found_id,
            "top2_gap": found.top2_gap,
        }
    return result
