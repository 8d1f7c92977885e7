"""An emulator of the PTX that Triton emits: a lane of numpy per thread, and a memory that finds races.

- `parse.py` reads the text. `opcodes.py` computes each opcode.
- `memory.py` holds bytes and finds races. `block.py` runs one block of threads; `launch.py` runs many in random order.
- `emit.py` has Triton compile a kernel as for a GPU. `device.py` sends a call of the library through the emulator.
"""
