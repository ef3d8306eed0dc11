"""lm-eval with a task of four local questions: log-likelihoods and generation."""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate

QUESTIONS = [
    {"question": "The sky is", "choices": [" blue", " a spoon"], "answer": 0},
    {"question": "Two and two make", "choices": [" cheese", " four"], "answer": 1},
    {"question": "The capital of France is", "choices": [" Paris", " seven"], "answer": 0},
    {"question": "Fish live in", "choices": [" anger", " water"], "answer": 1},
]


def main(url: str, model: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "questions.jsonl"
        data.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
        common: dict[str, Any] = {
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(data)}},
            "test_split": "test",
            "doc_to_text": "{{question}}",
            "doc_to_target": "answer",
        }
        choices = {
            **common,
            "task": "tiny_choices",
            "output_type": "multiple_choice",
            "doc_to_choice": "choices",
            "target_delimiter": "",
        }
        texts = {
            **common,
            "task": "tiny_texts",
            "output_type": "generate_until",
            "doc_to_target": "{{choices[answer]}}",
            "generation_kwargs": {"until": ["\n"], "max_gen_toks": 8, "temperature": 0},
            "metric_list": [{"metric": "exact_match"}],
        }
        results = simple_evaluate(
            model="local-completions",
            model_args={
                "model": model,
                "base_url": f"{url}/v1/completions",
                "tokenizer_backend": "remote",
                "num_concurrent": 1,
                "max_length": 512,
            },
            tasks=[choices, texts],
        )
    accuracy = results["results"]["tiny_choices"]["acc,none"]
    assert accuracy == 1.0, results["results"]
    assert len(results["samples"]["tiny_texts"]) == len(QUESTIONS)


main(*sys.argv[1:3])
