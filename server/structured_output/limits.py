"""How much a grammar may cost: units are llguidance's, about 50,000 lexer fuel a millisecond."""

from llguidance import LLParserLimits

LIMITS = LLParserLimits(max_lexer_states=50_000, verbose_errors=False)
