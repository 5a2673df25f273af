"""The head: gathers the ranks, plans, raises epochs and drives their steps."""
