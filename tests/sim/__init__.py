"""A whole cluster in one process, in virtual time."""
