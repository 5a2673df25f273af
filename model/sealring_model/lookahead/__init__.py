"""The next step on a rank of a pipeline, launched before its input is there."""
