"""Measures where the time of a decode round goes, against memory bandwidth."""
