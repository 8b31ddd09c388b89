"""The `istbench` command; `python -m istbench` is the same."""

import signal
import sys

# `python -m` would import files of the working directory, which may be a results folder. A checkout may stay.
_CHECKOUT = __file__.removesuffix("/istbench/__main__.py")
if __name__ == "__main__" and not sys.flags.safe_path and sys.path[0] != _CHECKOUT:
    del sys.path[0]

from istbench.interrupts import EXIT_INTERRUPTED, INTERRUPTED, handle_interrupts  # noqa: E402


def main() -> None:
    """Run the command line; see `istbench.cli.main`. Ctrl-C ends it with one line, also while modules load."""
    handle_interrupts()
    try:
        from istbench.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write(f"istbench: {INTERRUPTED}\n")
        sys.exit(EXIT_INTERRUPTED)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the status is final; only exit handlers run from here


if __name__ == "__main__":
    main()
