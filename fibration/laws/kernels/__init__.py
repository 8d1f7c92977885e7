"""Laws of kernels: markov and reflecting (`reflecting.py`), coherent, orthogonality.

`fibre_sums.py` serves the proofs, `kernel_search.py` the searches.
"""
