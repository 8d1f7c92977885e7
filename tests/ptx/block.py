"""One block of threads: its registers, and what each instruction does to them and to memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from ptx.fault import Fault
from ptx.memory import Memory, View
from ptx.opcodes import OPCODES, SIGNED, UNSIGNED, Lanes, bits, read, width
from ptx.parse import Address, Constant, Group, Instruction, Kernel, Operand, Register, Symbol

Mask = NDArray[np.bool_]
WARP = 32
ACCESS = re.compile(r"(ld|st)\.(global|shared)(?:\.c[ag])?(?:\.v([24]))?\.([bsuf]\d+)")
MATRICES = re.compile(r"(ld|st)matrix\.sync\.aligned\.m8n8\.x[124]\.shared\.b16")
ATOMIC = re.compile(r"atom\.global\.gpu(?:\.(relaxed|acquire|release|acq_rel))?\.add\.u32")
SHARED = "global_smem"  # what Triton calls the start of it
# Shuffles, and what says that they are of all 32 lanes.
WHOLE_WARP = {"shfl.sync.bfly.b32": 31, "shfl.sync.idx.b32": 31, "shfl.sync.up.b32": 0}


class Block:
    """The `number`th block of a launch. `run` stops where another block may be next: before and after what orders them."""

    def __init__(
        self,
        kernel: Kernel,
        number: int,
        blocks: int,
        arguments: Mapping[str, Lanes],
        memory: Memory,
        shared: int,
        seed: int,
    ) -> None:
        self.kernel, self.place, self.blocks, self.arguments, self.memory = kernel, number, blocks, arguments, memory
        self.lanes = np.arange(kernel.threads)
        first = number * kernel.threads
        self.threads = first + self.lanes
        self.view = View(first, np.zeros(blocks * kernel.threads, np.int64))
        self.shared = Memory(shared + 16, "shared")
        self.shared.allocated[:shared] = True
        self.garbage = np.random.default_rng((seed, number))
        self.registers: dict[str, Lanes] = {
            "%tid.x": self.lanes.astype(np.uint32),
            "%ctaid.x": self.every(number, 32),
            "%nctaid.x": self.every(blocks, 32),
        }
        self.everyone = np.ones(kernel.threads, bool)
        self.executed: Counter[str] = Counter()

    def run(self) -> Iterator[None]:
        at, here = 0, self.everyone
        elsewhere: dict[int, Mask] = {}  # where threads are that have branched differently: those behind go on first
        while True:
            if elsewhere and min(elsewhere) <= at:
                elsewhere[at] = elsewhere.get(at, False) | here
                at = min(elsewhere)
                here = elsewhere.pop(at)
            instruction = self.kernel.instructions[at]
            at += 1
            opcode = instruction.opcode
            self.executed[opcode] += 1
            active = self.active(instruction, here)
            try:
                if opcode in OPCODES:
                    self.compute(instruction, active)
                elif opcode.startswith("setp.") and opcode.endswith("x2"):
                    self.compare_halves(instruction, active)
                elif opcode == "ret":
                    self.together(active, "returns")
                    return
                elif opcode in ("bra", "bra.uni"):
                    target = self.kernel.labels[_name(instruction.operands[0])]
                    if active.any() and (stay := here & ~active).any():
                        elsewhere[target] = elsewhere.get(target, False) | active
                        here = stay
                    elif active.any():
                        at = target
                elif opcode == "bar.sync" or (opcode == "bar.warp.sync" and self.kernel.threads == WARP):
                    self.together(active, "waits")
                    yield
                    self.view.barrier(self.kernel.threads)
                elif atomic := ATOMIC.fullmatch(opcode):
                    yield
                    self.add(instruction, active, atomic[1] or "relaxed")
                    yield
                elif access := ACCESS.fullmatch(opcode):
                    (self.load if access[1] == "ld" else self.store)(instruction, active, *access.groups()[1:])
                elif matrices := MATRICES.fullmatch(opcode):
                    self.together(active, "exchanges matrices")
                    self.matrices(instruction, matrices[1] == "ld")
                elif opcode.startswith("ld.param."):
                    self.parameter(instruction, active)
                elif opcode.startswith("mov."):
                    self.move(instruction, active)
                elif opcode in WHOLE_WARP:
                    self.shuffle(instruction, active)
                else:
                    raise Fault(f"the opcode {opcode} is not known")
            except Fault as fault:
                raise Fault(f"{self.kernel.name}, block {self.place}, '{instruction.text}': {fault}") from fault

    # ------------------------------------------------------------ registers

    def every(self, number: int, size: int) -> Lanes:
        return np.full(self.kernel.threads, number & ((1 << size) - 1), f"u{size // 8}")

    def held(self, operand: Operand, size: int) -> Lanes:
        """The bits of an operand."""
        if isinstance(operand, Register):
            if operand.name not in self.registers:
                raise Fault(f"reads {operand.name}, which holds nothing")
            return self.registers[operand.name]
        if isinstance(operand, Constant):
            return self.every(operand.bits, size) if size > 1 else np.full(self.kernel.threads, operand.bits != 0)
        if operand == Symbol(SHARED):
            return self.every(0, size)
        raise Fault(f"{operand} is no number")

    def number(self, operand: Operand, kind: str, of_wider: bool = False) -> Lanes:
        """`of_wider`: of a register with more bits, the lower ones."""
        held = self.held(operand, width(kind))
        return read(held.astype(f"u{width(kind) // 8}") if of_wider and held.itemsize * 8 > width(kind) else held, kind)

    def put(self, operand: Operand, made: Lanes, active: Mask) -> None:
        """Where a thread is not active, a register keeps what it holds, or holds anything."""
        name = _name(operand)
        size = self.kernel.widths.get(name.rstrip("0123456789"))
        if size and size != (1 if made.dtype == bool else 8 * made.itemsize):
            raise Fault(f"{made.dtype} does not fit {name}")
        if not active.all():
            others = self.registers.get(name)
            if others is None:
                others = self.garbage.integers(0, 256, made.nbytes, np.uint8).view(made.dtype) if size != 1 else ~made
            made = np.where(active, made, others)
        self.registers[name] = made

    def compute(self, instruction: Instruction, active: Mask) -> None:
        opcode = OPCODES[instruction.opcode]
        into, *operands = instruction.operands
        converts = instruction.opcode.startswith("cvt.")
        given = [self.number(operand, kind, converts) for operand, kind in zip(operands, opcode.reads, strict=True)]
        made = opcode.compute(*given)
        self.put(into, bits(made, opcode.writes), active)

    def compare_halves(self, instruction: Instruction, active: Mask) -> None:
        """Of 32 bits, for a predicate each: the lower one's comes first."""
        into, *operands = instruction.operands
        opcode = OPCODES[instruction.opcode.removesuffix("x2")]
        halves = [self.held(operand, 32).view(np.uint16).reshape(-1, 2).T for operand in operands]
        if not isinstance(into, Group):
            raise Fault(f"{into} is no group of registers")
        for part, *given in zip(into.parts, *halves, strict=True):
            numbers = [read(np.ascontiguousarray(g), kind) for g, kind in zip(given, opcode.reads, strict=True)]
            self.put(part, bits(opcode.compute(*numbers), opcode.writes), active)

    def move(self, instruction: Instruction, active: Mask) -> None:
        """A register, or its halves: the lower one comes first."""
        kind = instruction.opcode.removeprefix("mov.")
        into, given = instruction.operands
        size = width(kind)
        if isinstance(into, Group):
            halves = self.number(given, kind).view(f"u{size // 16}").reshape(-1, 2).T
            for part, half in zip(into.parts, halves, strict=True):
                self.put(part, half, active)
        elif isinstance(given, Group):
            halves = np.stack([self.number(part, f"b{size // 2}") for part in given.parts], axis=1)
            self.put(into, halves.view(f"u{size // 8}")[:, 0], active)
        else:
            self.put(into, bits(self.number(given, kind), kind), active)

    def shuffle(self, instruction: Instruction, active: Mask) -> None:
        into, given, by, *rest = instruction.operands
        if rest != [Constant(WHOLE_WARP[instruction.opcode]), Constant(-1)]:
            raise Fault("a shuffle of less than a warp is not known")
        self.together(active, "shuffles")
        by_lanes = self.number(by, "u32").astype(int) % WARP
        if instruction.opcode.startswith("shfl.sync.up."):  # the first lanes of a warp keep what is theirs
            source = np.where(self.lanes % WARP >= by_lanes, self.lanes - by_lanes, self.lanes)
        elif instruction.opcode.startswith("shfl.sync.idx."):
            source = self.lanes // WARP * WARP + by_lanes
        else:
            source = self.lanes ^ by_lanes
        self.put(into, self.number(given, "b32")[source], active)

    # ------------------------------------------------------------ control

    def active(self, instruction: Instruction, here: Mask) -> Mask:
        if instruction.guard is None:
            return here
        name, wanted = instruction.guard
        return (self.number(Register(name), "pred") == wanted) & here

    def together(self, active: Mask, what: str) -> None:
        if not active.all():
            raise Fault(f"a part of the block {what}")

    # ------------------------------------------------------------ memory

    def address(self, operand: Operand) -> NDArray[np.uint64]:
        if not isinstance(operand, Address):
            raise Fault(f"{operand} is no address")
        base = self.held(operand.base, 64)
        return base.astype(np.uint64) + np.uint64(operand.offset & (2**64 - 1))

    def accessed(
        self, space: str, operand: Operand, parts: int, size: int, active: Mask, load: bool
    ) -> tuple[Memory, Lanes]:
        memory = self.memory if space == "global" else self.shared
        return memory, memory.places(self.address(operand)[active], parts * size, parts * size, load)

    def load(self, instruction: Instruction, active: Mask, space: str, vector: str | None, kind: str) -> None:
        """A byte lies in the lower half of a register of 16 bits."""
        into, source = instruction.operands
        parts = into.parts if isinstance(into, Group) else (into,)
        size = int(kind[1:]) // 8
        memory, places = self.accessed(space, source, int(vector or 1), size, active, load=True)
        found = memory.load(self.view, self.threads[active], places)
        for part, one in zip(parts, np.split(found, len(parts), axis=1), strict=True):
            made = np.zeros(self.kernel.threads, f"u{size}")
            made[active] = np.ascontiguousarray(one).view(f"u{size}")[:, 0]
            self.put(part, made.astype(np.uint16) if size == 1 else made, active)

    def store(self, instruction: Instruction, active: Mask, space: str, vector: str | None, kind: str) -> None:
        target, given = instruction.operands
        parts = given.parts if isinstance(given, Group) else (given,)
        size = int(kind[1:]) // 8
        memory, places = self.accessed(space, target, int(vector or 1), size, active, load=False)
        held = [self.number(part, f"u{max(16, 8 * size)}")[active] for part in parts]
        made = np.stack(held, axis=1).astype(f"u{size}").view(np.uint8)
        memory.store(self.view, self.threads[active], places, made)

    def matrices(self, instruction: Instruction, load: bool) -> None:
        """Matrices of 8 rows of 16 bytes. Of the ith, thread `8i + row` of a warp has the row's address, and `4 row + column`
        four of its bytes."""
        given, address = instruction.operands if load else instruction.operands[::-1]
        if not isinstance(given, Group):
            raise Fault(f"{given} is no group of registers")
        rows = self.address(address)
        for i, part in enumerate(given.parts):
            owner = self.lanes // WARP * WARP + 8 * i + self.lanes % WARP // 4
            self.shared.places(rows[owner], 16, 16)
            places = self.shared.places(rows[owner] + (self.lanes % 4 * 4).astype(np.uint64), 4, 4)
            if load:
                self.put(part, self.shared.load(self.view, self.threads, places).view(np.uint32)[:, 0], self.everyone)
            else:
                self.shared.store(self.view, self.threads, places, self.number(part, "u32")[:, None].view(np.uint8))

    def add(self, instruction: Instruction, active: Mask, order: str) -> None:
        into, target, given = instruction.operands
        terms = self.number(given, "u32")
        made = np.zeros(self.kernel.threads, np.uint32)
        places = self.memory.places(self.address(target)[active], 4, 4)
        release, acquire = order in ("release", "acq_rel"), order in ("acquire", "acq_rel")
        for lane, at in zip(np.flatnonzero(active), places, strict=True):
            thread = int(self.threads[lane])
            made[lane] = self.memory.add(self.view, thread, at[None], terms[lane], release, acquire)
        self.put(into, made, active)

    def parameter(self, instruction: Instruction, active: Mask) -> None:
        """A number may be widened on its way into a register."""
        kind = instruction.opcode.removeprefix("ld.param.")
        into, source = instruction.operands
        if not isinstance(source, Address) or _name(source.base) not in self.arguments:
            raise Fault("this is no parameter")
        given = read(self.arguments[_name(source.base)], kind)
        size = self.kernel.widths[_name(into).rstrip("0123456789")]
        if kind in (*SIGNED, *UNSIGNED):
            given = given.astype(f"{given.dtype.kind}{size // 8}")
        self.put(into, np.repeat(given.view(f"u{given.itemsize}"), self.kernel.threads), active)


def _name(operand: Operand) -> str:
    if not isinstance(operand, Register | Symbol):
        raise Fault(f"{operand} has no name")
    return operand.name
