"""The PTX that Triton emits, run on the CPU: a lane of numpy per thread, and a memory that knows who may see what.

`parse.py` reads the text, `opcodes.py` says what an opcode computes, `memory.py` holds bytes and finds races, `block.py`
runs one block of threads, `launch.py` many of them in a random order. `emit.py` has Triton compile a kernel as it would for a
GPU; `device.py` sends a call of the library through all of it.
"""
