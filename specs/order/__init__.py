"""What comes before a token, and after it: prefix ratios and discounted futures."""
