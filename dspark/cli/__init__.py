"""Implements the `dspark` command line."""
