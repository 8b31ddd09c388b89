"""The groups of units that a model has, and the cut of a model to some of them."""
