"""`istbench tune`: the ranges of methods' options, quasi-random trials, their winners, and the suite of these."""
