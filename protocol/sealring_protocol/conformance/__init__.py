"""Runs the conformance vectors of sealring/1 against this implementation.

`files` finds and reads them, `kinds` runs each kind, `ends` drives one end of a link, `streams`
cuts what goes in, and `fields` tells messages as the vectors do.
"""
