"""Speculative decoding with DSpark drafts: Python API, command line, benchmarks and training.

    from dspark import LLM, SamplingParams

Importing the package loads nothing; the names above load what they need at their first use.
"""

from typing import TYPE_CHECKING, Any

from dspark.shadowing import guard_imports

if TYPE_CHECKING:
    from dspark.llm import LLM, Choice, Completion, SamplingParams, TextDelta

__all__ = ["LLM", "Choice", "Completion", "SamplingParams", "TextDelta"]

guard_imports()


def __getattr__(name: str) -> Any:
    if name in __all__:
        import dspark.llm

        return getattr(dspark.llm, name)
    raise AttributeError(f"module 'dspark' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
