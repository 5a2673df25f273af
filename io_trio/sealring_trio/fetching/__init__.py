"""Fetching models, and giving them: `source` has the interface, `hub` and `members` the sources."""
