"""What a model computes, apart from any ring: the yardstick of `sealring verify`."""
