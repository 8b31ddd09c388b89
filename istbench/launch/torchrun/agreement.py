"""The checks, before the first cell and before each, that the ranks of torchrun can train together."""

import ipaddress
import json
from collections.abc import Sequence

import msgspec

from istbench.base.decode import encode_own
from istbench.base.errors import UserError, shown
from istbench.base.options.run import MAY_DIFFER_BY_HOST, RunRequest
from istbench.launch.torchrun.meeting import Card
from istbench.results.header import Header


def command_as_text(requests: Sequence[RunRequest]) -> str:
    """The `requests` of a command as text for a card: by field, its value, or a list if they have several."""
    rows = [msgspec.to_builtins(request, enc_hook=encode_own) for request in requests]
    columns = {name: [row[name] for row in rows] for name in RunRequest.__struct_fields__ if name != "data"}
    fields = {
        name: values[0] if values.count(values[0]) == len(values) else values for name, values in columns.items()
    }
    return json.dumps({"number of cells": len(rows), **fields})


def host_names(cards: Sequence[Card]) -> list[str]:
    """The host name of each rank. Hosts of one name get their addresses added."""
    addresses = {card.host: {other.address for other in cards if other.host == card.host} for card in cards}
    return [f"{card.host} ({card.address})" if len(addresses[card.host]) > 1 else card.host for card in cards]


def check_agreement(cards: Sequence[Card]) -> None:
    """Check that all ranks would train the same and can reach one another; `cards` are by rank.

    Raises:
        UserError: naming the host that differs from that of rank 0, and the difference.
    """
    names = host_names(cards)
    first, here = cards[0], names[0]
    for card, host in zip(cards, names, strict=True):
        differing = [
            f"{what} {_compared(what, card)} ({_compared(what, first)} on {here})"
            for what in first.versions
            if _compared(what, card) != _compared(what, first)
        ]
        if differing:
            raise UserError(f"{host} has {', '.join(differing)}; install the same on every host")
    for card, host in zip(cards, names, strict=True):
        own, other = json.loads(card.config), json.loads(first.config)
        for name in other:
            if name not in MAY_DIFFER_BY_HOST and own.get(name) != other[name]:
                raise UserError(
                    f"{name} is {shown(own.get(name))} on {host} and {shown(other[name])} on {here}; give the same "
                    "command on every host"
                )
        if card.fingerprint != first.fingerprint:
            raise UserError(
                f"{host} and {here} have different data (fingerprints {card.fingerprint[:12]} and "
                f"{first.fingerprint[:12]}); give every host the same --data, or the same prepared cache"
            )
        if card.own_gpu != first.own_gpu:
            with_gpu, without = (host, here) if card.own_gpu else (here, host)
            raise UserError(
                f"{with_gpu} has a GPU for every process, and {without} does not; use --device cpu, or start one "
                "process for each GPU of a host"
            )
    loopback = [_is_loopback(card.address) for card in cards]
    if any(loopback) and not all(loopback):
        host = names[loopback.index(True)]
        raise UserError(
            f"{host} reaches the rendezvous endpoint by its loopback interface, which no other host can reach; "
            f"give torchrun an --rdzv-endpoint with an address of {host} on the network"
        )


def _compared(what: str, card: Card) -> str:
    version = card.versions.get(what, "none")
    return version.rpartition(".")[0] if what == "python" else version  # patch versions of Python may differ


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def agreed(cell: Header, cards: Sequence[Card]) -> Header:
    """The `cell` of rank 0 with the number of threads for which all hosts have cores, their names and cores."""
    cores = {name: card.cores for name, card in zip(host_names(cards), cards, strict=True)}
    known = [count for count in cores.values() if count is not None]
    together = sum(known) if len(known) == len(cores) else None
    host = msgspec.structs.replace(cell.host, name=", ".join(cores), count=len(cores), cores=together)
    return msgspec.structs.replace(cell, threads=min(card.threads for card in cards), host=host)
