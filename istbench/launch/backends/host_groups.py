"""Options of methods that name the nodes of a host: a number takes the place of `host`, so a cell's name has it."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from istbench.base.errors import UserError
from istbench.base.options.run import RunRequest

_OPTIONS = ("group", "shard")


def on_hosts(request: RunRequest, nodes: Sequence[int]) -> RunRequest:
    """`request` on hosts with so many `nodes` each; see `options_on_hosts`."""
    return msgspec.structs.replace(request, method_options=options_on_hosts(request.method_options, nodes))


def options_on_hosts(options: Mapping[str, Any], nodes: Sequence[int]) -> dict[str, Any]:
    """A method's `options` with a number in place of `host`, on hosts with so many `nodes` each.

    Raises:
        UserError: if the hosts have different numbers of nodes.
    """
    named = [name for name in _OPTIONS if options.get(name) == "host"]
    if named and len(set(nodes)) > 1:
        raise UserError(
            f"{named[0]}=host needs as many nodes on every host, and these have {', '.join(map(str, nodes))}; use "
            f"other --nodes, or give a number, such as {named[0]}=2"
        )
    return {**options, **dict.fromkeys(named, nodes[0])}
