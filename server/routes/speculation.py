"""What speculation did for one answer, as the OpenAI routes tell it on request."""

from engine import SpeculationStats


def speculation_block(stats: SpeculationStats) -> dict[str, object]:
    """accept_length counts the bonus token; accept_histogram[a] are rounds in which a drafts stood.

    Without a round, as without a draft, the means are 0.
    """
    drafted = stats.num_draft_tokens
    return {
        "accept_length": stats.mean_accept_length,
        "accept_rate": stats.num_accepted / drafted if drafted else 0.0,
        "accept_histogram": stats.accept_counts,
        "num_rounds": stats.num_rounds,
        "num_draft_tokens": drafted,
        "num_accepted_tokens": stats.num_accepted,
    }
