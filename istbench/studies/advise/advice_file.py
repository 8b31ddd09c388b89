"""The last advice on a results directory, in its advice.json, for pages and programs."""

from pathlib import Path

import msgspec

from istbench.base.decode import decode_json, read_bytes
from istbench.base.files import write_errors, writing_whole
from istbench.studies.advise.answer import Advice

_NAME = "advice.json"


def save_advice(advice: Advice, out: Path) -> Path:
    """Write `advice` to `out`, over an earlier one; returns the file.

    Raises:
        UserError: if it cannot be written.
    """
    path = out / _NAME
    with write_errors(path), writing_whole(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(advice), indent=1) + b"\n")
    return path


def load_advice(out: Path) -> Advice | None:
    """The advice in `out`; None if it has none.

    Raises:
        UserError: if the file holds no advice.
    """
    path = out / _NAME
    if not path.exists():
        return None
    content = read_bytes(path, "the advice of `istbench advise`")
    return decode_json(content, Advice, str(path), "delete it, or run `istbench advise` again")
