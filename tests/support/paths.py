"""Locates files of the checkout for tests, wherever a test lies."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
GOLDEN = TESTS / "golden"
PRETRAINED = ROOT / "draft" / "pretrained" / "smollm2-135m-instruct"
