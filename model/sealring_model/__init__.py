"""Pipeline stages, caches, sampling and the engine process of sealring, on MLX."""
