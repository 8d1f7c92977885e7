"""Laws of kernels: markov, reflecting, coherent, orthogonality.

`fibre_sums.py` and `projections.py` serve the proofs, `kernel_search.py` and `orthogonality_search.py` the searches.
"""
