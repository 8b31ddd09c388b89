"""Data sets of extreme classification: repository text as CSR arrays, or synthetic points."""
