"""The method to use for a task on a cluster, with the odds that it is the fastest to the target."""
