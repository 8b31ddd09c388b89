"""The `istbench` command; `python -m istbench` is the same."""

import gc
import sys

# `python -m` would import files of the working directory, which may be a results folder. A checkout may stay.
_CHECKOUT = __file__.removesuffix("/istbench/__main__.py")
if __name__ == "__main__" and not sys.flags.safe_path and sys.path[0] != _CHECKOUT:
    del sys.path[0]

from istbench.base.interrupts import EXIT_INTERRUPTED, INTERRUPTED, handle_interrupts, handle_interrupts_of_exit  # noqa: E402


def main() -> None:
    """Run the command line; see `istbench.cli.main`. Ctrl-C ends it with one line, also while modules load."""
    handle_interrupts()
    gc.set_threshold(50_000, 20, 50)  # by default, a fifth of an import of torch is a search for garbage
    try:
        import istbench.launch.processes.compiler_on_demand  # noqa: F401  (a cell's memory asks for an optimizer)
        from istbench.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write(f"istbench: {INTERRUPTED}\n")
        sys.exit(EXIT_INTERRUPTED)
    finally:
        handle_interrupts_of_exit(_status(sys.exc_info()[1]))


def _status(end: BaseException | None) -> int:
    """The exit status of this process, which `end` ends."""
    if not isinstance(end, SystemExit):
        return int(end is not None)
    return end.code if isinstance(end.code, int) else int(end.code is not None)


if __name__ == "__main__":
    main()
