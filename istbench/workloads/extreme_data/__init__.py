"""Data sets of extreme classification: repository text read fast, kept as CSR arrays, or made up."""
