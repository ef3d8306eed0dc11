"""Builds the `usage` and `speculation` objects of OpenAI responses."""

from collections.abc import Sequence

from engine import Finish, SpeculationStats


def usage_of(finishes: Sequence[Finish], num_choices: int = 1) -> dict[str, object]:
    """Return the usage of finishes in the order of the choices; each prompt counts once."""
    firsts = finishes[::num_choices]
    num_prompt = sum(finish.num_prompt_tokens for finish in firsts)
    num_output = sum(finish.num_output_tokens for finish in finishes)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "prompt_tokens_details": {
            "cached_tokens": sum(finish.num_cached_tokens for finish in firsts)
        },
    }


def speculation_of(stats: SpeculationStats) -> dict[str, object]:
    """Return a completion's speculation statistics; the means are 0 without a round.

    accept_length includes the bonus token. accept_histogram[a] counts rounds with a accepted
    drafts.
    """
    return {
        "accept_length": stats.mean_accept_length,
        "accept_rate": stats.accept_rate,
        "accept_histogram": stats.accept_counts,
        "num_rounds": stats.num_rounds,
        "num_draft_tokens": stats.num_draft_tokens,
        "num_accepted_tokens": stats.num_accepted,
    }
