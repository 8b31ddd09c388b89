"""Files that istbench ships beside its code: its suites and task files, and recorded results to look at."""

import sysconfig
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
_INSTALLED = Path("share/istbench/configs")

EXAMPLE = "example"
"""The name that stands for the recorded results, as in `istbench.load("example")`."""


def suites_folder() -> Path:
    """The folder of istbench's own suites: `configs` of a checkout, or its copy in an installation.

    pip puts that copy below the prefix of the environment, below the user's for `--user`, or beside the package for
    `--target`.
    """
    schemes = (sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user"))
    prefixes = [_PACKAGE.parent, *(Path(sysconfig.get_path("data", scheme)) for scheme in schemes)]
    folders = [_PACKAGE.parent / "configs", *(prefix / _INSTALLED for prefix in prefixes)]
    return next((folder for folder in folders if folder.is_dir()), folders[-2])


def example_results() -> Path:
    """A results directory with the runs of `istbench compare example`. Commands only read it."""
    return _PACKAGE / "results" / EXAMPLE
