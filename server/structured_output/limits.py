"""Sets the cost limits of a grammar, in llguidance's units."""

from llguidance import LLParserLimits

LIMITS = LLParserLimits(max_lexer_states=50_000, verbose_errors=False)
