"""Replays checked against the same training on a really shaped network."""
