"""Image classification: data of several layouts, prepared once, and the batches made of it."""
