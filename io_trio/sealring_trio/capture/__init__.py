"""Reads recorded traffic: `packets` the file, `streams` TCP, and `decoding` what links said."""
