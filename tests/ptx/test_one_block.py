"""Registers, branches and memory of one block: undefined behaviour of a GPU is a fault."""

import pytest

from ptx.fault import Fault
from ptx.handwritten_kernels import WAIT, run

PARTED = """
	mov.b32 	%r4, 0;
	and.b32 	%r3, %r1, 3;
	setp.eq.b32 	%p2, %r3, 0;
	@%p2 bra 	$L_none;
$L_loop:
	add.s32 	%r4, %r4, 10;
	sub.s32 	%r3, %r3, 1;
	setp.ne.b32 	%p2, %r3, 0;
	@%p2 bra 	$L_loop;
	bra.uni 	$L_end;
$L_none:
	mov.b32 	%r4, 7;
$L_end:
	bar.sync 	0;
	st.global.b32 [ %rd3 + 0 ], { %r4 };
"""

VECTORS = """
	shl.b32 	%r3, %r1, 3;
	st.shared.v2.b32 [ %r3 + 0 ], { %r1, %r3 };
	bar.sync 	0;
	xor.b32 	%r4, %r3, 8;
	ld.shared.v2.b32 { %r5, %r6 }, [ %r4 + 0 ];
	sub.s32 	%r6, %r6, %r5;
	st.global.b32 [ %rd3 + 0 ], { %r6 };
"""
BYTES = """
	add.s32 	%r3, %r1, 500;
	cvt.u16.u32 	%rs1, %r3;
	st.shared.b8 	[ %r1 + 0 ], %rs1;
	bar.sync 	0;
	xor.b32 	%r4, %r1, 1;
	ld.shared.b8 	%rs2, [ %r4 + 0 ];
	cvt.u32.u16 	%r5, %rs2;
	st.global.b32 [ %rd3 + 0 ], { %r5 };
"""
STORE = "st.global.b32 [ %rd3 + 0 ], { %r3 };"
LANES = range(64)
FOUND = {  # a body, and what each thread stores
    "threads that branch differently reconverge": (PARTED, [7, 10, 20, 30] * 16),
    "a shuffle stays in its warp": (f"shfl.sync.bfly.b32 \t%r3, %r1, 16, 31, -1;\n\t{STORE}", [i ^ 16 for i in LANES]),
    "a shuffle upwards keeps the first lanes": (
        f"shfl.sync.up.b32 \t%r3, %r1, 4, 0, -1;\n\t{STORE}", [i - 4 * (i % 32 >= 4) for i in LANES],
    ),
    "a shuffle from one lane broadcasts": (f"shfl.sync.idx.b32 \t%r3, %r1, 5, 31, -1;\n\t{STORE}", [5] * 32 + [37] * 32),
    "a parameter is widened with its sign": (
        f"ld.param.s32 \t%rd5, [kernel_param_1];\n\tshr.s64 %rd5, %rd5, 40;\n\tcvt.u32.u64 %r3, %rd5;\n\t{STORE}", [2**32 - 1] * 64,
    ),
    "a conversion reads the lower bits of a wider register": (
        f"mov.b64 %rd5, 21474836479;\n\tcvt.s64.s32 \t%rd5, %rd5;\n\tcvt.u32.u64 %r3, %rd5;\n\t{STORE}", [2**32 - 1] * 64,
    ),
    "vectors are loaded and stored in order": (VECTORS, [7 * (i ^ 1) for i in LANES]),
    "bytes of wider registers are loaded and stored, between others": (BYTES, [((i ^ 1) + 500) % 256 for i in LANES]),
}  # fmt: skip


@pytest.mark.parametrize(("body", "wanted"), FOUND.values(), ids=FOUND)
def test_a_body_stores_what_it_should(body, wanted):
    assert run(body, more=[-7])[:64].tolist() == wanted


def test_halves_of_a_register_are_compared_separately():
    """1 and -2 with 0 and 0, as bfloat16: the lower half comes first."""
    body = "mov.b32 %r3, -1073725568;\n\tmov.b32 %r4, 0;\n\tsetp.ge.bf16x2 %p1|%p2, %r3, %r4;\n\t{}"
    for predicate, wanted in (("%p1", 7), ("%p2", 9)):
        found = run(body.format(f"selp.b32 %r5, 7, 9, {predicate};\n\tst.global.b32 [ %rd3 + 0 ], {{ %r5 }};"))
        assert (found[:64] == wanted).all()


def test_too_many_arguments_are_a_fault():
    with pytest.raises(Fault, match="has 3 parameters, and is given 4"):
        run("", more=[1, 2, 3])


MISTAKEN = {
    "reads %r7, which holds nothing": "add.s32 \t%r3, %r7, 1;",
    "a part of the block shuffles": "@%p1 bra \t$L_end;\n\tshfl.sync.bfly.b32 %r3, %r1, 1, 31, -1;\n$L_end:",
    "a part of the block waits": "@%p1 bar.sync \t0;",
    "the opcode bar.warp.sync is not known": "bar.warp.sync \t-1;",  # in a block of several warps
    "a part of the block returns": "@%p1 ret;",
    "is read as u64": "add.s64 \t%rd5, %rd1, %r1;",
    "does not fit": "cvt.u64.u32 \t%r5, %r1;",
}


@pytest.mark.parametrize(("words", "body"), MISTAKEN.items(), ids=MISTAKEN)
def test_mistakes_in_registers_and_branches_are_faults(words, body):
    if "u64" in words:
        words = "is read as s64"
    with pytest.raises(Fault, match=words):
        run(body)


def test_a_register_that_a_thread_has_not_set_is_random():
    body = "@%p1 mov.b32 \t%r3, 7;\n\tst.global.b32 [ %rd3 + 0 ], { %r3 };"
    first, second = (run(body, seed=seed)[:64] for seed in (0, 1))
    assert first[0] == second[0] == 7
    assert (first[1:] != second[1:]).any()


PLACES = {
    "nobody has written": "ld.global.b32 { %r3 }, [ %rd3 + 0 ];",
    "out of the bounds of global": "st.global.b32 [ %rd3 + 2044 ], { %r1 };",
    "misaligned": "add.s64 %rd3, %rd3, 2;\n\tst.global.b32 [ %rd3 + 0 ], { %r1 };",
    "not every address is a multiple of 16": "st.global.v4.b32 [ %rd3 + 0 ], { %r1, %r1, %r1, %r1 };",
    "out of the bounds of shared": "cvt.u32.u64 %r3, %rd2;\n\tst.shared.b32 [ %r3 + 1024 ], %r1;",
    "two threads store different values": "st.global.b32 [ %rd1 + 0 ], { %r1 };",
}


@pytest.mark.parametrize(("words", "body"), PLACES.items(), ids=PLACES)
def test_addresses_outside_a_kernels_memory_are_faults(words, body):
    with pytest.raises(Fault, match=words):
        run(body)


def test_a_null_pointer_is_a_fault():
    with pytest.raises(Fault, match="out of the bounds"):
        run("ld.param.b64 %rd5, [kernel_param_2];\n\tld.global.b32 { %r3 }, [ %rd5 + 0 ];")


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


def test_an_exchange_needs_a_barrier_before_and_after():
    assert run(EXCHANGE.format(between=WAIT, after=WAIT))[:64].tolist() == [i ^ 1 for i in range(64)]
    with pytest.raises(Fault, match="loads shared memory that another thread stores"):
        run(EXCHANGE.format(between="", after=WAIT))
    with pytest.raises(Fault, match="stores to shared memory that another thread loads"):
        run(EXCHANGE.format(between=WAIT, after=""))


def test_a_store_to_an_address_that_other_threads_read_is_a_race():
    """Every thread reads one place, one of them writes it."""
    body = "st.shared.b32 [global_smem], 5;\n\tbar.sync 0;\n\tld.shared.b32 %r3, [global_smem];\n\t{}\n\tsetp.eq.b32 %p2, %r1, {};\n\t@%p2 st.shared.b32 [global_smem], %r3;"
    for reader in (0, 63):
        run(body.format(WAIT, reader))
        with pytest.raises(Fault, match="stores to shared memory that another thread loads"):
            run(body.format("", reader))
