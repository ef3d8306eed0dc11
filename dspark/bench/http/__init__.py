"""Measures servers over HTTP as their clients see them: `dspark bench serve` and the peers' script.

Nothing here loads torch, so that the client takes little time from the servers that it measures.
"""
