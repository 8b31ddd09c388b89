"""What every rank that torchrun started says of itself before training, and whether they can train together."""

import dataclasses
import ipaddress
import json
from collections.abc import Sequence

import msgspec

from istbench.cells.resolve import Cell
from istbench.config.run import MAY_DIFFER_BY_HOST, RunConfig
from istbench.door import encode_own
from istbench.errors import UserError, shown
from istbench.results.header import Host
from istbench.torchrun.meeting import Card


def as_text(config: RunConfig) -> str:
    """`config` as a card has it."""
    return msgspec.json.encode(config, enc_hook=encode_own).decode()


def host_names(cards: Sequence[Card]) -> list[str]:
    """The name of every rank's host; hosts of one name are told apart by their addresses."""
    addresses = {card.host: {other.address for other in cards if other.host == card.host} for card in cards}
    return [f"{card.host} ({card.address})" if len(addresses[card.host]) > 1 else card.host for card in cards]


def check_agreement(cards: Sequence[Card]) -> None:
    """Whether all ranks would train the same, and can reach one another; `cards` by rank.

    Raises:
        UserError: naming the host that differs from rank 0's, and in what.
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
        _check_options(card, first, host, here)
        if card.fingerprint != first.fingerprint:
            raise UserError(
                f"the data on {host} is not that on {here} (fingerprints {card.fingerprint[:12]} and "
                f"{first.fingerprint[:12]}); give every host the same --data, or the same prepared cache"
            )
        if card.own_gpu != first.own_gpu:
            with_gpu, without = (host, here) if card.own_gpu else (here, host)
            raise UserError(
                f"{with_gpu} has a GPU for every process, {without} has not; use --device cpu, or start as many "
                "processes on a host as it has GPUs"
            )
    loopback = [_is_loopback(card.address) for card in cards]
    if any(loopback) and not all(loopback):
        host = names[loopback.index(True)]
        raise UserError(
            f"{host} reaches the rendezvous endpoint by its loopback interface, where no other host finds it; "
            f"give torchrun an --rdzv-endpoint that is an address of {host}'s network"
        )


def _compared(what: str, card: Card) -> str:
    version = card.versions.get(what, "none")
    return version.rpartition(".")[0] if what == "python" else version  # a patch of Python's changes nothing here


def _check_options(card: Card, first: Card, host: str, here: str) -> None:
    own, other = json.loads(card.config), json.loads(first.config)
    for name in other:
        if name not in MAY_DIFFER_BY_HOST and own.get(name) != other[name]:
            raise UserError(
                f"{name} is {shown(own.get(name))} on {host} and {shown(other[name])} on {here}; give the same "
                "command on every host"
            )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def agreed(cell: Cell, cards: Sequence[Card]) -> Cell:
    """Rank 0's `cell` as all ranks run it: with threads that all hosts have cores for, their names and cores."""
    threads = min(json.loads(card.config)["threads"] for card in cards)
    host = _together(cell.header.host, cards)
    return with_threads(dataclasses.replace(cell, header=msgspec.structs.replace(cell.header, host=host)), threads)


def with_threads(cell: Cell, threads: int) -> Cell:
    """`cell` with so many `threads` a node."""
    config = msgspec.structs.replace(cell.config, threads=threads)
    name = config.cell(cell.header.data_source.fingerprint)
    return Cell(name=name, config=config, header=msgspec.structs.replace(cell.header, cell=name, config=config))


def _together(host: Host, cards: Sequence[Card]) -> Host:
    """Rank 0's `host` as all machines of `cards`, with each one's cores once."""
    cores = {name: card.cores for name, card in zip(host_names(cards), cards, strict=True)}
    known = [count for count in cores.values() if count is not None]
    together = sum(known) if len(known) == len(cores) else None
    return msgspec.structs.replace(host, name=", ".join(cores), count=len(cores), cores=together)
