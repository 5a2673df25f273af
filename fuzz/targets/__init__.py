"""One module for each target: `seeds()` gives inputs to begin with, and `check(data)` does
whatever the target is about with *data* and raises anything when an invariant does not hold."""
