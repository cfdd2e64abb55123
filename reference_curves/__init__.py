"""Published training curves: data only, found by `evalmon.reference`."""
