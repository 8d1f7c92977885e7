"""Sums: KL divergences, entropy, likelihood and squares, which no advantage multiplies."""
