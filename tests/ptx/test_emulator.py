"""The emulator itself: what opcodes compute, and that what a GPU would punish is a fault."""

import numpy as np
import pytest

from ptx.fault import Fault
from ptx.launch import launch
from ptx.memory import Memory
from ptx.opcodes import OPCODES, bits, read
from ptx.parse import Address, Constant, Group, Register, parse

KERNEL = """
.version 8.7
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 global_smem[];
.visible .entry kernel(
	.param .u64 .ptr .global .align 1 kernel_param_0,
	.param .u32 kernel_param_1,
	.param .u64 .ptr .global .align 1 kernel_param_2
)
.reqntid {threads}
{{
	.reg .pred 	%p<9>;
	.reg .b16 	%rs<9>;
	.reg .b32 	%r<99>;
	.reg .b64 	%rd<99>;
	ld.param.b64 	%rd1, [kernel_param_0];
	mov.u32 	%r1, %tid.x;                    // a comment; of two parts
	mov.u32 	%r2, %ctaid.x;
	mul.wide.u32 	%rd2, %r1, 4;
	add.s64 	%rd3, %rd1, %rd2;               // a place for each thread
	setp.eq.b32 	%p1, %r1, 0;
{body}
	ret;
}}
"""
PLACE, SIZE = 256, 2048


def run(body, *, threads=64, blocks=1, seed=0, shared=1024, given=None, more=()):
    """What a kernel leaves in memory, as uint32: at first `given`, else nothing that anybody has written."""
    memory = Memory(2 * PLACE + SIZE, "global")
    memory.allocated[PLACE : PLACE + SIZE] = True
    if given is not None:
        content = np.asarray(given, np.uint32).view(np.uint8)
        memory.bytes[PLACE : PLACE + len(content)] = content
        memory.written[PLACE : PLACE + len(content)] = True
    kernel = parse(KERNEL.format(body=body, threads=threads))
    launch(kernel, blocks, [PLACE, *more], memory, shared, seed)
    return memory.bytes[PLACE : PLACE + SIZE].view(np.uint32)


def real(kind, number):
    return bits(np.array([number], {"f64": np.float64}.get(kind, np.float32)), kind)


# ---------------------------------------------------------------- text


def test_what_is_parsed():
    kernel = parse(KERNEL.format(body="$L_1:\n\t@!%p1 mov.b64 \t{_, %r3}, %rd5;\n\t@%p1 bra \t$L_1;", threads=96))
    assert (kernel.name, kernel.target, kernel.threads) == ("kernel", "sm_90a", 96)
    assert list(kernel.parameters.items()) == [
        ("kernel_param_0", "u64"),
        ("kernel_param_1", "u32"),
        ("kernel_param_2", "u64"),
    ]
    assert kernel.widths == {"%p": 1, "%rs": 16, "%r": 32, "%rd": 64}
    load, *_, move, branch, end = kernel.instructions
    assert load.opcode == "ld.param.b64" and load.guard is None
    assert load.operands[0] == Register("%rd1") and isinstance(load.operands[1], Address)
    assert move.guard == ("%p1", False) and move.operands[0] == Group((Register("_"), Register("%r3")))
    assert kernel.instructions[kernel.labels["$L_1"]] is move
    assert branch.guard == ("%p1", True) and end.opcode == "ret"


def test_inline_assembly_has_registers_of_its_own():
    body = "mov.b64 %rd5, 0d3FF0000000000000;\n\t{ .reg .b32 tmp; mov.b64 {tmp, %r3}, %rd5; }\n\tst.global.b32 [ %rd3 + 0 ], { %r3 };"
    assert (run(body)[:64] == 0x3FF00000).all()


@pytest.mark.parametrize(
    ("word", "wanted"), [("0f3F800000", 0x3F800000), ("0x10", 16), ("-1", -1), ("0d0000000000000001", 1)]
)
def test_constants(word, wanted):
    (move,) = [
        i for i in parse(KERNEL.format(body=f"mov.b64 %rd9, {word};", threads=32)).instructions if i.opcode == "mov.b64"
    ]
    assert move.operands[1] == Constant(wanted)


# ---------------------------------------------------------------- numbers

NAN = float("nan")
COMPUTED = [
    ("fma.rn.f32", (1 + 2.0**-23, 1 - 2.0**-23, -1.0), -(2.0**-46)),  # one rounding
    ("fma.rn.f64", (1 + 2.0**-31, 1 - 2.0**-31, -1.0), -(2.0**-62)),
    ("setp.ge.f32", (NAN, 1.0), False),
    ("setp.geu.f32", (NAN, 1.0), True),
    ("setp.geu.f32", (0.0, 1.0), False),
    ("setp.ne.f64", (NAN, NAN), False),
    ("setp.neu.f64", (NAN, NAN), True),
    ("setp.num.bf16", (NAN, 0.0), False),
    ("setp.lt.s32", (-1, 0), True),
    ("setp.lt.u32", (2**32 - 1, 0), False),
    ("max.f64", (NAN, 1.0), 1.0),
    ("min.s64", (-5, 3), -5),
    ("abs.ftz.f32", (-1e-40,), 0.0),
    ("cvt.rn.bf16.f32", (1 + 2.0**-8,), 1.0),  # ties to even
    ("cvt.rn.bf16.f32", (1 + 3 * 2.0**-8,), 1 + 2.0**-6),
    ("cvt.rn.bf16.f32", (3e38,), 3.0042e38),
    ("cvt.f64.bf16", (-1.5,), -1.5),
    ("cvt.rn.f32.f64", (1 + 2.0**-25,), 1.0),
    ("cvt.rzi.s32.f32", (-1.9,), -1),
    ("cvt.rzi.s32.f32", (3e9,), 2**31 - 1),
    ("cvt.rzi.s64.f64", (NAN,), 0),
    ("cvt.rmi.f64.f64", (-0.5,), -1.0),
    ("cvt.s64.s32", (-2,), -2),
    ("cvt.u64.u32", (2**32 - 2,), 2**32 - 2),
    ("cvt.u32.u64", (2**33 + 5,), 5),
    ("mul.wide.s32", (-3, 2**31 - 1), -3 * (2**31 - 1)),
    ("mad.wide.u32", (2**32 - 1, 8, 1), 8 * (2**32 - 1) + 1),
    ("mul.lo.s64", (2**62, 4), 0),
    ("shl.b64", (1, 64), 0),
    ("shl.b32", (3, 31), 2**31),
    ("shr.s32", (-8, 1), -4),
    ("shr.u32", (2**31, 31), 1),
    ("shr.s32", (-8, 99), -1),
    ("bfe.u32", (0b110100, 2, 3), 0b101),
    ("ex2.approx.f32", (-3.0,), 0.125),
    ("lg2.approx.f32", (8.0,), 3.0),
    ("div.rn.f64", (1.0, 3.0), 1 / 3),
    ("selp.f32", (1.0, 2.0, False), 2.0),
    ("xor.pred", (True, True), False),
]


@pytest.mark.parametrize(("name", "given", "wanted"), COMPUTED)
@np.errstate(all="ignore")
def test_what_opcodes_compute(name, given, wanted):
    opcode = OPCODES[name]

    def held(number, kind):
        return real(kind, number) if "f" in kind else bits(np.array([number]), kind)

    made = opcode.compute(*(read(held(x, k), k) for x, k in zip(given, opcode.reads, strict=True)))
    found = read(bits(made, opcode.writes), opcode.writes)[0]
    assert found == (pytest.approx(wanted, rel=1e-4) if wanted == 3.0042e38 else wanted)


def test_a_reciprocal_that_code_has_to_refine():
    half = OPCODES["rcp.approx.ftz.f64"].compute(np.array([3.0]))
    assert half[0] == pytest.approx(1 / 3, rel=2.0**-19) and half[0] != 1 / 3
    assert half.view(np.uint64)[0] & 0xFFFFFFFF == 0


@pytest.mark.parametrize(
    "body",
    ["prmt.b32 %r3, %r1, %r2, 1;", "ld.global.nc.b32 %r3, [ %rd3 + 0 ];", "fence.acq_rel.gpu;", "add.f16 %rs1, %rs2, %rs3;",
     "atom.global.cta.acq_rel.add.u32 %r3, [ %rd1 + 0 ], 1;", "ld.volatile.global.b32 %r3, [ %rd3 + 0 ];"],
)  # fmt: skip
def test_what_is_not_known_is_named(body):
    opcode = body.split()[0].rstrip(";")
    with pytest.raises(Fault, match=f"the opcode {opcode} is not known"):
        run(body)


# ---------------------------------------------------------------- registers and control

LOOP = """
	mov.b32 	%r3, 0;
	mov.b32 	%r4, 0;
$L_loop:
	add.s32 	%r4, %r4, %r1;
	add.s32 	%r3, %r3, 1;
	setp.lt.s32 	%p2, %r3, 5;
	@%p2 bra 	$L_loop;
	st.global.b32 [ %rd3 + 0 ], { %r4 };
"""


def test_a_loop():
    assert run(LOOP)[:64].tolist() == [5 * i for i in range(64)]


def test_a_shuffle_stays_in_its_warp():
    found = run("shfl.sync.bfly.b32 \t%r3, %r1, 16, 31, -1;\n\tst.global.b32 [ %rd3 + 0 ], { %r3 };")
    assert found[:64].tolist() == [i ^ 16 for i in range(64)]


def test_a_parameter_is_widened_with_its_sign():
    body = "ld.param.s32 \t%rd5, [kernel_param_1];\n\tshr.s64 %rd5, %rd5, 40;\n\tcvt.u32.u64 %r5, %rd5;\n\tst.global.b32 [ %rd3 + 0 ], { %r5 };"
    assert run(body, more=[-7])[0] == 2**32 - 1


def test_too_many_arguments():
    with pytest.raises(Fault, match="has 3 parameters, and is given 4"):
        run("", more=[1, 2, 3])


MISTAKEN = {
    "reads %r7, which holds nothing": "add.s32 \t%r3, %r7, 1;",
    "threads of one block branch differently": "@%p1 bra \t$L_end;\n$L_end:",
    "a part of the block waits": "@%p1 bar.sync \t0;",
    "a part of the block returns": "@%p1 ret;",
    "is read as u64": "add.s64 \t%rd5, %rd1, %r1;",
    "does not fit": "cvt.u64.u32 \t%r5, %r1;",
}


@pytest.mark.parametrize(("words", "body"), MISTAKEN.items(), ids=MISTAKEN)
def test_mistakes_in_registers_and_control(words, body):
    if "u64" in words:
        words = "is read as s64"
    with pytest.raises(Fault, match=words):
        run(body)


def test_a_register_that_some_threads_have_not_set_holds_anything_there():
    body = "@%p1 mov.b32 \t%r3, 7;\n\tst.global.b32 [ %rd3 + 0 ], { %r3 };"
    first, second = (run(body, seed=seed)[:64] for seed in (0, 1))
    assert first[0] == second[0] == 7
    assert (first[1:] != second[1:]).any()


# ---------------------------------------------------------------- memory

STORE = "st.global.b32 [ %rd3 + 0 ], { %r1 };"
PLACES = {
    "nobody has written": "ld.global.b32 { %r3 }, [ %rd3 + 0 ];",
    "out of the bounds of global": "st.global.b32 [ %rd3 + 2044 ], { %r1 };",
    "misaligned": "add.s64 %rd3, %rd3, 2;\n\tst.global.b32 [ %rd3 + 0 ], { %r1 };",
    "not every address is a multiple of 16": "st.global.v4.b32 [ %rd3 + 0 ], { %r1, %r1, %r1, %r1 };",
    "out of the bounds of shared": "cvt.u32.u64 %r3, %rd2;\n\tst.shared.b32 [ %r3 + 1024 ], %r1;",
    "two threads store different values": "st.global.b32 [ %rd1 + 0 ], { %r1 };",
}


@pytest.mark.parametrize(("words", "body"), PLACES.items(), ids=PLACES)
def test_places_that_are_no_kernels_own(words, body):
    with pytest.raises(Fault, match=words):
        run(body)


def test_a_null_pointer():
    with pytest.raises(Fault, match="out of the bounds"):
        run("ld.param.b64 %rd5, [kernel_param_2];\n\tld.global.b32 { %r3 }, [ %rd5 + 0 ];")


def test_vectors_are_loaded_and_stored_in_order():
    body = """
	shl.b32 	%r3, %r1, 3;
	st.shared.v2.b32 [ %r3 + 0 ], { %r1, %r3 };
	bar.sync 	0;
	xor.b32 	%r4, %r3, 8;
	ld.shared.v2.b32 { %r5, %r6 }, [ %r4 + 0 ];
	sub.s32 	%r6, %r6, %r5;
	st.global.b32 [ %rd3 + 0 ], { %r6 };
"""
    assert run(body)[:64].tolist() == [7 * (i ^ 1) for i in range(64)]


def test_bytes():
    """Each between others, of registers that hold more."""
    body = """
	add.s32 	%r3, %r1, 500;
	cvt.u16.u32 	%rs1, %r3;
	st.shared.b8 	[ %r1 + 0 ], %rs1;
	bar.sync 	0;
	xor.b32 	%r4, %r1, 1;
	ld.shared.b8 	%rs2, [ %r4 + 0 ];
	cvt.u32.u16 	%r5, %rs2;
	st.global.b32 [ %rd3 + 0 ], { %r5 };
"""
    assert run(body)[:64].tolist() == [((i ^ 1) + 500) % 256 for i in range(64)]


MATRIX = """
	shl.b32 	%r3, %r1, 2;
	st.shared.b32 	[ %r3 + 0 ], %r1;
	bar.sync 	0;
	shl.b32 	%r4, %r1, 4;
	and.b32 	%r4, %r4, 240;
	ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r5, %r6}, [%r4];
	shl.b32 	%r6, %r6, 8;
	or.b32 		%r5, %r5, %r6;
	st.global.b32 [ %rd3 + 0 ], { %r5 };
"""


def test_matrices_are_loaded_by_rows():
    """Two of 8 rows of 4 words, one after the other: a thread has the word of its number in each."""
    assert run(MATRIX)[:64].tolist() == [(i % 32) + 256 * (i % 32 + 32) for i in range(64)]
    with pytest.raises(Fault, match="not every address is a multiple of 16"):
        run(MATRIX.replace("%r1, 4;", "%r1, 3;").replace(", 240", ", 248"))


EXCHANGE = """
	cvt.u32.u64 	%r3, %rd2;
	xor.b32 	%r4, %r3, 4;
	st.shared.b32 	[ %r3 + 0 ], %r1;
	{between}
	ld.shared.b32 	%r5, [ %r4 + 0 ];
	{after}
	st.shared.b32 	[ %r3 + 0 ], %r5;
	st.global.b32 [ %rd3 + 0 ], {{ %r5 }};
"""
WAIT = "bar.sync \t0;"


def test_an_exchange_needs_a_barrier_before_and_after():
    assert run(EXCHANGE.format(between=WAIT, after=WAIT))[:64].tolist() == [i ^ 1 for i in range(64)]
    with pytest.raises(Fault, match="loads shared memory that another thread stores"):
        run(EXCHANGE.format(between="", after=WAIT))
    with pytest.raises(Fault, match="stores to shared memory that another thread loads"):
        run(EXCHANGE.format(between=WAIT, after=""))


def test_what_one_of_many_has_read_is_overwritten_by_it_alone():
    """Every thread reads one place, one of them writes it."""
    body = "st.shared.b32 [global_smem], 5;\n\tbar.sync 0;\n\tld.shared.b32 %r3, [global_smem];\n\t{}\n\tsetp.eq.b32 %p2, %r1, {};\n\t@%p2 st.shared.b32 [global_smem], %r3;"
    for reader in (0, 63):
        run(body.format(WAIT, reader))
        with pytest.raises(Fault, match="stores to shared memory that another thread loads"):
            run(body.format("", reader))


# ---------------------------------------------------------------- blocks

# Each block stores 64 numbers; the one that arrives last adds up what lies 64 numbers on, from the block before it.
ARRIVE = """
	shl.b32 	%r3, %r2, 6;
	add.s32 	%r4, %r3, %r1;
	mul.wide.u32 	%rd4, %r4, 4;
	add.s64 	%rd5, %rd1, %rd4;
	st.global.b32 [ %rd5 + 16 ], {{ %r4 }};
	{before}
	@%p1 atom.global.gpu.{order}.add.u32 %r5, [ %rd1 + 0 ], 1;
	@%p1 st.shared.b32 [global_smem], %r5;
	{after}
	ld.shared.b32 	%r6, [global_smem];
	setp.ne.b32 	%p2, %r6, 2;
	@%p2 bra 	$L_end;
	{handed}
	ld.global.cg.b32 {{ %r7 }}, [ %rd3 + 16 ];
	ld.global.b32 {{ %r8 }}, [ %rd3 + 272 ];
	add.s32 	%r9, %r7, %r8;
	st.global.b32 [ %rd3 + 784 ], {{ %r9 }};
$L_end:
"""
GOOD = {"before": WAIT, "order": "acq_rel", "after": WAIT, "handed": ""}
COUNTER = [0]


@pytest.mark.parametrize("seed", range(8))
def test_the_last_to_arrive_sees_what_others_stored(seed):
    assert run(ARRIVE.format(**GOOD), blocks=3, given=COUNTER, seed=seed)[196:256].tolist() == [
        64 + 2 * i for i in range(60)
    ]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"order": "relaxed"}, "loads global memory that another thread stores"),
        ({"order": "release"}, "loads global memory that another thread stores"),
        ({"order": "acquire"}, "loads global memory that another thread stores"),
        ({"before": ""}, "loads global memory that another thread stores"),  # only the first thread's are released
        ({"after": ""}, "loads shared memory that another thread stores"),
    ],
    ids=str,
)
def test_what_the_last_to_arrive_needs(change, words, seed):
    """Whatever the order of the blocks: what is found is that nothing orders two accesses, not that it went wrong."""
    with pytest.raises(Fault, match=words):
        run(ARRIVE.format(**{**GOOD, **change}), blocks=3, given=COUNTER, seed=seed)


TOLD = """
	shl.b32 	%r3, %r2, 5;
	add.s32 	%r4, %r3, %r1;
	mul.wide.u32 	%rd4, %r4, 4;
	add.s64 	%rd5, %rd1, %rd4;
	st.global.b32 [ %rd5 + 16 ], {{ %r4 }};
	bar.sync 	0;
	mov.b32 	%r5, 0;
	@%p1 atom.global.gpu.acq_rel.add.u32 %r5, [ %rd1 + 0 ], 1;
	{shuffles}
	setp.ne.b32 	%p2, %r5, 1;
	@%p2 bra 	$L_end;
	{handed}
	ld.global.b32 {{ %r8 }}, [ %rd3 + 16 ];
	ld.global.b32 {{ %r9 }}, [ %rd3 + 144 ];
$L_end:
"""
SHUFFLES = "\n".join(f"shfl.sync.bfly.b32 %r6, %r5, {2**i}, 31, -1; add.s32 %r5, %r5, %r6;" for i in range(5))


def test_what_one_thread_acquires_others_have_after_a_barrier():
    """To be told by a shuffle who is last orders nothing."""
    for seed in range(4):
        run(TOLD.format(shuffles=SHUFFLES, handed=WAIT), threads=32, blocks=2, given=COUNTER, seed=seed)
        with pytest.raises(Fault, match="loads global memory that another thread stores"):
            run(TOLD.format(shuffles=SHUFFLES, handed=""), threads=32, blocks=2, given=COUNTER, seed=seed)


def test_a_plain_store_among_atomics():
    with pytest.raises(Fault, match="race"):
        run(
            "@%p1 atom.global.gpu.relaxed.add.u32 %r3, [ %rd1 + 0 ], 1;\n\t@%p1 st.global.b32 [ %rd1 + 0 ], { %r2 };",
            blocks=2,
            given=COUNTER,
        )


def test_blocks_that_store_at_one_place():
    with pytest.raises(Fault, match="race: stores to global memory that another thread stores to"):
        run("@%p1 st.global.b32 [ %rd1 + 0 ], { %r1 };", blocks=2)


TICKETS = """
	@%p1 atom.global.gpu.relaxed.add.u32 %r3, [ %rd1 + 0 ], 1;
	mul.wide.u32 	%rd4, %r2, 4;
	add.s64 	%rd5, %rd1, %rd4;
	@%p1 st.global.b32 [ %rd5 + 4 ], { %r3 };
"""


def test_blocks_come_in_an_order_of_the_schedule():
    orders = {tuple(run(TICKETS, blocks=20, given=COUNTER, seed=seed)[:21].tolist()) for seed in range(4)}
    assert len(orders) == 4
    for count, *tickets in orders:
        assert count == 20 and sorted(tickets) == list(range(20))
    again = {tuple(run(TICKETS, blocks=20, given=COUNTER, seed=1)[:21].tolist()) for _ in range(2)}
    assert len(again) == 1 and again < orders
