"""One round of a run: what every node did when, as data, a picture, and a file for ui.perfetto.dev. No torch."""
