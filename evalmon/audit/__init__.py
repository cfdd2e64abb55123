"""The data stream: what a run really read."""
