"""Commands for whoever maintains sealring: what the code costs, and what its tests notice."""
