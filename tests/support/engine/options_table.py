"""docs/options.md, made from the options that the tests combine: `make docs`.

python -m tests.engine.options_table      writes it
"""

from tests.support.engine.option_cases import OPTIONS, Option
from tests.support.paths import ROOT

FILE = ROOT / "docs" / "options.md"

_PREFACE = """# Options together

Generated from the cases of `tests/engine/sampling/test_options.py` by `make docs`; do not edit.

Every option of a request holds inside a draft block as it does in plain decoding: row by row
along the draft, as if each draft token before the row were committed. The target's distribution p
is the one that the options leave; the draft is drawn from its own q, to which only the temperature
and the grammar apply. A draft token that the options make unlikely is rejected more often, and
nothing else changes: judging by p is what makes the answer exact.

Order: `logit_bias`, `repetition_penalty`, `frequency_penalty` and `presence_penalty`, grammar,
`min_tokens`; then temperature, `top_k`, `top_p`, `min_p`. That is transformers' order, where it
has them. `min_tokens` gives way where nothing but a stop is left to say, as at the end of a
grammar.

| Option | What |
|---|---|
"""

_LEGEND = """
Every pair is asked for on a tiny model, and each option alone. **T**: the greedy answer equals,
token for token, what `transformers.generate` says with both options, without a draft and with
drafts that are partly right. **R**: the same against the API's formula written down token by
token, because transformers lacks one of the two. For every cell a seeded request at temperature
0.8 gives the same answer alone, among all the others in another order, and when sequences take
each other's pages. Log probabilities are compared with transformers' to 1e-4, and there is one for
each token.

"""


def table() -> str:
    """The page as a whole."""
    rows = [f"| {option.name} | {option.meaning} |" for option in OPTIONS]
    numbers = " | ".join(str(i) for i in range(1, len(OPTIONS) + 1))
    grid = [f"| | | {numbers} |", f"|---|---|{'---|' * len(OPTIONS)}"]
    for i, option in enumerate(OPTIONS):
        cells = [_cell(option, other) if j <= i else "" for j, other in enumerate(OPTIONS)]
        grid.append(f"| {i + 1} | {option.name} | {' | '.join(cells)} |")
    return _PREFACE + "\n".join(rows) + "\n" + _LEGEND + "\n".join(grid) + "\n"


def _cell(one: Option, other: Option) -> str:
    return "T" if one.in_transformers and other.in_transformers else "R"


if __name__ == "__main__":
    FILE.write_text(table(), encoding="utf-8")
