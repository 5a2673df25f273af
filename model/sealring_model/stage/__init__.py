"""A pipeline stage of any mlx-lm model, and its caches."""
