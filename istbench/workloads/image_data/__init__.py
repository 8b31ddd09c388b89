"""Image classification: read data in several layouts, prepare it once, make batches."""
