"""A fuzz of the verifier: random hierarchies, judged by brute force that shares nothing with `fibration.laws`.

`world.py` evaluates a hierarchy on a batch by its definition, `batches.py` draws batches, `generate.py` draws formulas
and hierarchies, `judges/` has one judge per law, and `run.py` runs them and shrinks what fails.
"""
