"""Proposes a block of draft tokens after each anchor: the draft pass, then Markov sampling."""
