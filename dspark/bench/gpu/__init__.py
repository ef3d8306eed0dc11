"""Parts of gpu_check: models made on the device, checks against references, measurements."""
