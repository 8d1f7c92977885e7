"""Blocks that share memory: two accesses without an order are a fault, in any schedule of the blocks."""

import pytest

from ptx.fault import Fault
from ptx.handwritten_kernels import WAIT, run

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
def test_the_last_block_sees_the_stores_of_the_others(seed):
    assert run(ARRIVE.format(**GOOD), blocks=3, given=COUNTER, seed=seed)[196:256].tolist() == [
        64 + 2 * i for i in range(60)
    ]


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


def test_a_barrier_passes_an_acquire_to_the_block():
    """To be told by a shuffle who is last orders nothing."""
    for seed in range(4):
        run(TOLD.format(shuffles=SHUFFLES, handed=WAIT), threads=32, blocks=2, given=COUNTER, seed=seed)
        with pytest.raises(Fault, match="loads global memory that another thread stores"):
            run(TOLD.format(shuffles=SHUFFLES, handed=""), threads=32, blocks=2, given=COUNTER, seed=seed)


def test_a_plain_store_among_atomics_is_a_race():
    with pytest.raises(Fault, match="race"):
        run(
            "@%p1 atom.global.gpu.relaxed.add.u32 %r3, [ %rd1 + 0 ], 1;\n\t@%p1 st.global.b32 [ %rd1 + 0 ], { %r2 };",
            blocks=2,
            given=COUNTER,
        )


def test_two_blocks_that_store_at_one_address_are_a_race():
    with pytest.raises(Fault, match="race: stores to global memory that another thread stores to"):
        run("@%p1 st.global.b32 [ %rd1 + 0 ], { %r1 };", blocks=2)


TICKETS = """
	@%p1 atom.global.gpu.relaxed.add.u32 %r3, [ %rd1 + 0 ], 1;
	mul.wide.u32 	%rd4, %r2, 4;
	add.s64 	%rd5, %rd1, %rd4;
	@%p1 st.global.b32 [ %rd5 + 4 ], { %r3 };
"""


def test_the_seed_decides_the_order_of_blocks():
    orders = {tuple(run(TICKETS, blocks=20, given=COUNTER, seed=seed)[:21].tolist()) for seed in range(4)}
    assert len(orders) == 4
    for count, *tickets in orders:
        assert count == 20 and sorted(tickets) == list(range(20))
    again = {tuple(run(TICKETS, blocks=20, given=COUNTER, seed=1)[:21].tolist()) for _ in range(2)}
    assert len(again) == 1 and again < orders
