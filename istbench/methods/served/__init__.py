"""A model on a parameter server: every node updates its share of the parameters and sends it to the others."""
