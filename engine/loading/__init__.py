"""Loads target and draft checkpoints: quantization, fused norms, fingerprints, dtypes."""
