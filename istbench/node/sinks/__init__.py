"""Other places for the evaluations of a run, beside events.jsonl: a file each, listed in setup.cfg."""
