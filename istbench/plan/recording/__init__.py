"""Records the steps of someone's own training script under torch's global hooks. The script stays as it is."""
