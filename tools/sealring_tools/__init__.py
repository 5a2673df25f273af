"""Commands of `sealring` that only a checkout has: bench, peer and decode."""
