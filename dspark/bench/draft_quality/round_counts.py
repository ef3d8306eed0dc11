"""How many rounds a calibration needs. Loads no torch."""

MIN_ROUNDS = 600  # fewer rounds overfit a few prompts
USUAL_ROUNDS = 3000  # where collecting stops
