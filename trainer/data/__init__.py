"""Token files, data order, loaders and the id log."""
