"""Work on text that a stranger wrote: in processes with limits."""
