from typing import Literal

Format = Literal["table", "markdown", "csv", "json"]
"""Formats of a report; `formats.print_report` prints each, and `--format` offers them."""
