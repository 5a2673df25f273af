"""The scheduler, on the head alone: which rows run, and which step comes next."""
