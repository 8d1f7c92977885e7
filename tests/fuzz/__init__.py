"""A fuzz of the verifier: random hierarchies, judged by brute force that shares no code with `fibration.laws`.

- `world.py` evaluates a hierarchy on a batch by its definition.
- `batches.py` draws batches; `generate.py` draws formulas and hierarchies.
- `judges/` has one judge per law.
- `run.py` runs the judges and shrinks each failure.
"""
