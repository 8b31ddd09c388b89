"""Compare replays with the same training on shaped links of a lab."""
