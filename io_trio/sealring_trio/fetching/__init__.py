"""Fetching models: what a model consists of, and the bytes that a rank needs of its weights."""
