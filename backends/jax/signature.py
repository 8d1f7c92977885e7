"""The arguments of the functions that callers of a JAX module use, and the vectors that they become."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fibration.compiler.arguments import GIVEN, TOKENS, Caller, token_tensor
from fibration.compiler.ir import BATCH, Input, Names
from fibration.compiler.program import Program
from fibration.errors import BackendError

TENSORS = ("log_prob", "old_log_prob", *GIVEN)  # what is passed by position, in this order


@dataclass(frozen=True)
class Argument:
    """One argument of a function: its default as text ("" if it must be passed), and a line about it."""

    name: str
    default: str
    about: str
    by_position: bool = False


class Signature:
    """The arguments of a program, and the text that makes each of its vectors from them.

    `reserved`: names that no argument has. A name that is taken gets a number.
    """

    def __init__(self, program: Program, caller: Caller, reserved: frozenset[str]) -> None:
        self.program, self.caller, self.leaf, self.names = program, caller, program.leaves[0], Names(reserved)
        self.arguments: list[Argument] = []
        self.known: dict[tuple[str, ...], str] = {}  # the arguments by what they are: a kind and a key
        self.vectors: dict[Input, str] = {}
        self.labels: dict[str, tuple[str, str, str]] = {}  # labels, their number, and who has them
        read = sorted(program.inputs, key=lambda i: TENSORS.index(i.kind) if i.kind in TENSORS else len(TENSORS))
        rows, in_shape = caller.rows, "in the shape of the batch"
        for i in read:
            if i.kind in TOKENS:
                tensor = token_tensor(i)
                name = self.add(tensor.argument, (i.kind, *i.key), f"{tensor.note}, {in_shape}", "", i.kind in TENSORS)
                self.vectors[i] = f"at.tokens({name!r}, {name})"
            elif i.kind in GIVEN:
                alone = i.kind == "reward" and caller.adds_up_tokens
                about = f"per token, or one per {rows}"
                if alone:
                    about = f"one per token, {in_shape}: the formula adds them up"
                name = self.add(GIVEN[i.kind], (i.kind,), about, "", True)
                self.vectors[i] = f"at.given({name!r}, {name}, {i.over!r}{', of_rows=False' * alone})"
        self.add("mask", ("mask",), f"{in_shape}, True at tokens that count", "None")
        each = f"for packed tokens, the {rows} of each: ascending whole numbers from 0 on, below 0 where no token is"
        self.add("segments", ("segments",), each, "None")
        self.shape = self.shape_of(read)
        self.rows = self.add(f"n_{rows}", ("size", rows), f"for packed tokens, how many {rows} elements", "None")
        for stratum in self.labelled():
            self.label(stratum)
        for i in read:
            if i not in self.vectors:
                self.vectors[i] = self.vector(i)

    def shape_of(self, read: list[Input]) -> str:
        """The text of the shape of the batch. Advantages and rewards may be per row, so they have it last."""
        names = [self.known[i.kind, *i.key] for i in read if i.kind in TOKENS]
        if names:
            return f"jnp.shape({names[0]})"
        names = [self.known[key] for key in (("segments",), ("mask",), *((i.kind,) for i in read if i.kind in GIVEN))]
        return f"jnp.shape(next(x for x in ({', '.join(names)}) if x is not None))"

    def add(self, wish: str, key: tuple[str, ...], about: str, default: str = "", by_position: bool = False) -> str:
        if key not in self.known:
            self.known[key] = self.names.free(wish)
            self.arguments.append(Argument(self.known[key], default, about, by_position))
        return self.known[key]

    def labelled(self) -> Iterator[str]:
        """The strata that the program reads, other than tokens, rows and the batch."""
        read = [s for edge in self.program.edges for s in edge]
        for i in self.program.inputs:
            read += [i.over, *(i.key if i.kind == "count" else ())]
            if i.kind == "total":
                read += [self.caller.attributes[i.key[0]], i.key[1]]
        yield from (s for s in dict.fromkeys(read) if s not in (self.leaf, self.caller.rows, BATCH))

    def label(self, stratum: str) -> None:
        at = self.caller.rows if stratum in self.caller.over_rows else self.leaf
        which = f"one per {self.caller.rows}" + ", or in the shape of the batch" * (at == self.leaf)
        name = self.add(stratum, ("label", stratum), f"the {stratum} of each {at}, {which}: whole numbers from 0 on")
        most = f"how many {stratum} elements at most; by default as many as {at} elements"
        self.labels[stratum] = (name, self.add(f"n_{stratum}", ("size", stratum), most, "None"), at)

    def vector(self, i: Input) -> str:
        if i.kind == "count":
            return f"at.count({i.key[0]!r}, {i.key[1]!r})"
        if i.kind in ("attribute", "total"):
            on = self.caller.attributes[i.key[0]]
            shape = "in the shape of the batch" if on == self.leaf else f"one per {on}"
            name = self.add(i.key[0], ("attribute", i.key[0]), f"the attribute, {shape}")
            vector = f"at.vector({name!r}, {name}, {on!r})"
            if i.kind == "attribute" or on == i.key[1]:
                return vector
            return f"push({vector}, at.fibre({on!r}, {i.key[1]!r}))"
        if i.kind == "parameter":
            default = self.caller.defaults[i.key]
            each = f", or one per {i.over}" if i.over != BATCH else ""
            about = f"the parameter: one number{each}, in {self.caller.ranges[i.key[0]]}"
            text = "" if default is None else repr(default)
            name = self.add(self.program.given[i], ("parameter", *i.key, i.over), about, text)
            return f"at.vector({name!r}, {name}, {i.over!r})"
        raise BackendError(f"the jax backend has no argument for the input '{i.word}' of kind {i.kind}")
