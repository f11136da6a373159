"""Training: a client of the parts, one file per idea."""
