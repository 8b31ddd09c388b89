"""A cell that launchers pretend to train."""

import msgspec
from fake_runs import header

from istbench.base.decode import decode_own
from istbench.results.header import Header

HEAD = header("ist", nodes=3, status="running", result=None, workload="toy")
HEAD["threads"] = 2
HEADER = msgspec.convert(HEAD, Header, dec_hook=decode_own)


def names_of(events):
    """The kinds of `events`, as a file of them has them."""
    return [type(event).__name__.lower() for event in events]
