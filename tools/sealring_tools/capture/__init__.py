"""Reads recorded traffic: `packets` reads the file, `streams` puts TCP in order, and `decoding`
decodes the links."""
