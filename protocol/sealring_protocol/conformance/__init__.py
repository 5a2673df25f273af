"""Runs the conformance vectors of sealring/1, against this implementation or any other.

``python -m sealring_protocol.conformance`` is the command. `files` finds and reads the vectors,
`kinds` runs each kind, `ends` drives one end of a link, `brains` the control machines, `streams`
cuts what goes in, `answers` compares, and `fields` tells messages as the vectors do.

This room alone reads files and prints. Nothing else of the package needs it.
"""
