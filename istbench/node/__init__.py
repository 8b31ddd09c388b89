"""One worker process of a run: it trains on its clock, measures, evaluates and saves checkpoints."""
