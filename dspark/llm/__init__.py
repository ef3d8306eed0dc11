"""The Python API: a target and its draft in this process, without HTTP.

`LLM` wraps what the HTTP server uses: its settings, its request models and its text generation.
"""

from dspark.llm.llm import LLM
from dspark.llm.results import Choice, Completion, TextDelta
from dspark.llm.sampling_params import SamplingParams

__all__ = ["LLM", "Choice", "Completion", "SamplingParams", "TextDelta"]
