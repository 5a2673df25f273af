"""Conformance vectors of sealring/1: one generator each, one fault at most."""
