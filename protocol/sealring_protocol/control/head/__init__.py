"""The head: it gathers the ranks, plans, starts epochs and drives their steps."""
