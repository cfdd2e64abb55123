"""How often the curve rule errs and how late it speaks, on simulated and on published runs."""
