"""A budget for every level, in weights: tokens that move further out beyond it count less."""
