"""Laws of kernels: markov, reflecting, coherent, orthogonality. Each law begins at its `LAW`, at the end of its file.

`fibre_sums.py` serves the proofs, `kernel_search.py` the searches.
"""
