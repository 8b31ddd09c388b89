"""`python -m istbench` is the same as the `istbench` command."""

from istbench.cli import main

if __name__ == "__main__":
    main()
