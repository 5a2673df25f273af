"""Runs the conformance vectors of sealring/1, against this implementation or any other.

``python -m sealring_protocol.conformance`` is the command. `files` finds and reads the
vectors, `result` drives one end of a link and compares results, `kinds` runs each kind of vector,
and `report` cuts inputs and counts by family. `codec.encoding` makes JSON of messages, and messages
of it.

Only `files` and the command read files, and only the command prints. Nothing outside of this
package imports it. ``tests/test_floors.py`` says what each module may import.
"""
