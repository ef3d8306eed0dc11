"""Reports what the engine does: start report, metrics, statistics log, profiler, monitor."""
