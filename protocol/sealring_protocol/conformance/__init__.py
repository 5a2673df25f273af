"""Runs the conformance vectors of sealring/1, against this implementation or any other.

``python -m sealring_protocol.conformance`` is the command. `result` finds and reads the
vectors, drives one end of a link, and compares results. `kinds` runs each kind of vector, `streams`
cuts inputs, and `report` counts by family. `codec.encoding` makes JSON of messages, and messages of
it.

Only `result` and the command read files, and only the command prints. Nothing outside of this
package imports it. ``tests/test_floors.py`` says what each module may import.
"""
