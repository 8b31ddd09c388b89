"""Text from outside for HTML: cut to a length, on one line, and JSON that cannot end its script element."""

import json
from typing import Any

from istbench.base.errors import printable

_LONGEST = 300


def clipped(text: str, longest: int = _LONGEST) -> str:
    """`text` on one line of printable characters, cut to `longest` of them."""
    cut = text[: longest + 1]
    shown = printable(cut)
    return f"{shown[: longest - 1]}…" if len(cut) > longest else shown


def script_json(value: Any) -> str:
    """`value` as JSON for a script element of HTML. No `<` in it can close the element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").replace("\u2028", "\\u2028")
