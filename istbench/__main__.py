"""`python -m istbench` is the same as the `istbench` command."""

import sys

# `python -m` would import files of the working directory, which may be a results folder. A checkout may stay.
if not sys.flags.safe_path and sys.path[0] != __file__.removesuffix("/istbench/__main__.py"):
    del sys.path[0]

from istbench.cli import main

if __name__ == "__main__":
    main()
