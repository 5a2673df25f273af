"""One running node: its event loop, its links and its engine."""
