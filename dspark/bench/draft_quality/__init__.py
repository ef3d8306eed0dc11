"""Measures a draft itself: accept length per prompt set, confidence calibration."""
