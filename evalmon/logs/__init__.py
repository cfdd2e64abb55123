"""Training logs of a run, read into series."""
