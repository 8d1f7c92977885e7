"""Laws of kernels: markov, reflecting, coherent, orthogonality. Each law begins at its `LAW`, at the end of its file.

`fibre_sums.py` and `projections.py` serve the proofs, `kernel_search.py` the searches.
"""
