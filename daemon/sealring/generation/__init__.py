"""From a prompt to the text of its answer, with its traces; and what a node says of itself."""
