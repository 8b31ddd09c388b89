"""Index sets of tensor dimensions, and which of them are the same.

An atom is a set of consecutive numbers, such as the channels of a layer. A dimension is a product of atoms, the
last one fastest: [batch * heads, size of a head] has the dimensions (batch, heads) and (size of a head). Operations
tell that two products are the same set; then their atoms are joined, or split until they fit.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from istbench.workloads.neuron_groups.groups import Attribute


@dataclass(eq=False)
class Atom:
    """A set of `size` numbers.

    Attributes:
        whole: the reason why its numbers are no interchangeable units; empty while none is known.
        parts: the atoms whose product it is, or the one atom that it is joined with; empty for a root.
        attributes: whole numbers of modules that count it.
        scopes: names of modules in whose code a shape was written that contains it.
    """

    size: int
    whole: str = ""
    parts: tuple["Atom", ...] = ()
    attributes: set[Attribute] = field(default_factory=set)
    scopes: set[str] = field(default_factory=set)


Product = tuple[Atom, ...]
"""A dimension: the product of its atoms."""


def fresh(size: int, whole: str = "") -> Product:
    """A dimension of its own."""
    return (Atom(size, whole),) if size > 1 else ()


def roots(product: Iterable[Atom]) -> list[Atom]:
    """The atoms of `product` after all joining and splitting so far."""
    found: list[Atom] = []
    stack = [*reversed(list(product))]
    while stack:
        atom = stack.pop()
        if atom.parts:
            stack.extend(reversed(atom.parts))
        else:
            found.append(atom)
    return found


def keep_whole(product: Iterable[Atom], reason: str) -> None:
    """Note the reason why the numbers of every atom of `product` are no units; the first reason stays."""
    for atom in roots(product):
        atom.whole = atom.whole or reason


def split(atom: Atom, *sizes: int) -> Product:
    """The root `atom` as a product of new atoms of `sizes`."""
    atom.parts = tuple(Atom(size, atom.whole, (), set(atom.attributes), set(atom.scopes)) for size in sizes)
    return atom.parts


def equate(one: Product, other: Product, misfit: str) -> None:
    """Note that two dimensions are the same set of numbers.

    misfit: the reason why both stay whole if they have no common split.
    """
    left, right = roots(one), roots(other)
    while left and right:
        mine, theirs = left[0], right[0]
        if mine is theirs:
            del left[0], right[0]
        elif mine.size == theirs.size:
            _join(mine, theirs)
            del left[0], right[0]
        elif mine.size % theirs.size == 0:
            split(mine, theirs.size, mine.size // theirs.size)
        elif theirs.size % mine.size == 0:
            split(theirs, mine.size, theirs.size // mine.size)
        else:
            break
        left, right = roots(left), roots(right)
    keep_whole((*left, *right), misfit)


def _join(one: Atom, other: Atom) -> None:
    other.whole = other.whole or one.whole
    other.attributes |= one.attributes
    other.scopes |= one.scopes
    one.parts = (other,)


def regroup(product: Iterable[Atom], sizes: Sequence[int]) -> list[Product] | None:
    """The numbers of `product` as dimensions of `sizes`, in the same order; None if no split fits."""
    left = roots(product)
    dimensions: list[Product] = []
    for size in sizes:
        dimension: list[Atom] = []
        while size > 1:
            if not left:
                return None
            first = left[0]
            if size % first.size == 0:
                dimension.append(first)
                size //= first.size
                del left[0]
            elif first.size % size == 0:
                split(first, size, first.size // size)
                left = roots(left)
            else:
                return None
        dimensions.append(tuple(dimension))
    return dimensions if not left else None
