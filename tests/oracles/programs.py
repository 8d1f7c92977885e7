"""A small program: inputs, its adjoint, and its run in the interpreter."""

import numpy as np

from fibration.compiler.adjoint import adjoint
from fibration.compiler.interpret import Sizes
from fibration.compiler.ir import Const, Input, Key
from fibration.compiler.program import Program
from oracles.interpreter import interpreted

x = Input("x", "fine", "x")
y = Input("y", "fine", "y")
z = Input("z", "coarse", "z")
PARENT = np.array([0, 0, 1, 2, 2, 2])
SIZES = Sizes({("fine", "coarse"): PARENT}, {"fine": 6, "coarse": 3})


def program(**outputs):
    return Program("p", ("fine",), {Key(word): node for word, node in outputs.items()}, {})


def derived(p: Program, output: str, wrt: str, seed: Input | None = None, result: str = "g") -> Program:
    """The adjoint of one output towards the input of this name."""
    towards = next(i for i in p.inputs if i.word == wrt)
    return adjoint(p, {Key(output): seed or Const(1.0, p.outputs[Key(output)].stratum)}, {Key(result): (towards,)})


def run(p, **inputs):
    return interpreted(p, inputs, SIZES)
