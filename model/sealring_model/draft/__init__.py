"""A draft model: a small model with the same vocabulary, which guesses what a ring will draw."""
