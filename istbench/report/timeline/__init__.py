"""One round of a run by node and time, as data, a picture, a table and a file for ui.perfetto.dev. No torch."""
