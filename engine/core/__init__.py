"""Runs the step loop: the engine core, its worker thread and event dispatch."""
