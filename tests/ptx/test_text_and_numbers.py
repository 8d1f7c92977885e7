"""The emulator's reading of PTX text, and the results of opcodes."""

import numpy as np
import pytest

from ptx.fault import Fault
from ptx.handwritten_kernels import KERNEL, run
from ptx.opcodes import OPCODES, bits, read
from ptx.parse import Address, Constant, Group, Register, parse


def test_instructions_are_parsed():
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


def test_a_function_that_is_called_has_registers_and_labels_of_its_own():
    """The second call gets another number, and neither call changes the caller's %r3."""
    function = """.func add(
        .param .b32 add_param_0,
        .param .b64 add_param_1
)
{
        ld.param.b32 %r3, [add_param_0];
        setp.lt.s32 %p1, %r3, 10;
        @%p1 bra $L_small;
        mov.b32 %r3, 10;
$L_small:
        ld.param.b64 %rd3, [add_param_1];
        st.global.b32 [ %rd3 + 0 ], { %r3 };
        ret;
}
"""
    call = "{{ // callseq\n.param .b32 param0;\nst.param.b64 [param1], {};\nst.param.b32 [param0], {};\ncall.uni add, (param0, param1);\n\t}}"
    body = "\n".join(
        ["mov.b32 %r3, 7;", call.format("%rd3", 3), "add.s64 %rd4, %rd3, 512;", call.format("%rd4", 30)]
        + ["add.s64 %rd4, %rd3, 1024;", "st.global.b32 [ %rd4 + 0 ], { %r3 };"]
    )
    found = run(body, threads=128, functions=function)
    assert [set(part) for part in np.split(found[:384], 3)] == [{3}, {10}, {7}]


@pytest.mark.parametrize(
    ("word", "wanted"), [("0f3F800000", 0x3F800000), ("0x10", 16), ("-1", -1), ("0d0000000000000001", 1)]
)
def test_constants_are_parsed(word, wanted):
    (move,) = [
        i for i in parse(KERNEL.format(body=f"mov.b64 %rd9, {word};", threads=32)).instructions if i.opcode == "mov.b64"
    ]
    assert move.operands[1] == Constant(wanted)


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
    ("max.bf16", (-1.5, NAN), -1.5),
    ("max.bf16x2", (0x3F80C000, 0xBF804000), 0x3F804000),  # 1 and -2, beside -1 and 2
    ("prmt.b32", (0x81020384, 0x55667788, 0x7701), 0x55558403),
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
    ("bfe.s32", (0b110100, 2, 3), -3),
    ("bfe.s32", (0b110100, 2, 4), -3),
    ("bfe.s32", (0b010100, 2, 4), 5),
    ("bfe.s32", (0b110100, 2, 0), 0),
    ("bfe.s32", (-64, 4, 99), -4),
    ("bfe.s32", (-64, 99, 1), -1),
    ("bfe.s64", (2**40, 39, 2), -2),
    ("ex2.approx.f32", (-3.0,), 0.125),
    ("lg2.approx.f32", (8.0,), 3.0),
    ("div.rn.f64", (1.0, 3.0), 1 / 3),
    ("selp.f32", (1.0, 2.0, False), 2.0),
    ("xor.pred", (True, True), False),
]


def real(kind, number):
    return bits(np.array([number], {"f64": np.float64}.get(kind, np.float32)), kind)


@pytest.mark.sampled
@pytest.mark.parametrize(("name", "given", "wanted"), COMPUTED)
@np.errstate(all="ignore")
def test_opcodes_have_their_results(name, given, wanted):
    opcode = OPCODES[name]

    def held(number, kind):
        return real(kind, number) if "f" in kind else bits(np.array([number]), kind)

    made = opcode.compute(*(read(held(x, k), k) for x, k in zip(given, opcode.reads, strict=True)))
    found = read(bits(made, opcode.writes), opcode.writes)[0]
    assert found == (pytest.approx(wanted, rel=1e-4) if wanted == 3.0042e38 else wanted)


def test_the_approximate_reciprocal_is_coarse():
    half = OPCODES["rcp.approx.ftz.f64"].compute(np.array([3.0]))
    assert half[0] == pytest.approx(1 / 3, rel=2.0**-19) and half[0] != 1 / 3
    assert half.view(np.uint64)[0] & 0xFFFFFFFF == 0


@pytest.mark.parametrize(
    "body",
    ["lop3.b32 %r3, %r1, %r2, %r2, 1;", "ld.global.nc.b32 %r3, [ %rd3 + 0 ];", "fence.acq_rel.gpu;", "add.f16 %rs1, %rs2, %rs3;",
     "atom.global.cta.acq_rel.add.u32 %r3, [ %rd1 + 0 ], 1;", "ld.volatile.global.b32 %r3, [ %rd3 + 0 ];"],
)  # fmt: skip
def test_an_unknown_instruction_is_named(body):
    opcode = body.split()[0].rstrip(";")
    with pytest.raises(Fault, match=f"the opcode {opcode} is not known"):
        run(body)
