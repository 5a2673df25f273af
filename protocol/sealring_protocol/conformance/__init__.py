"""Runs the conformance vectors of sealring/1, against this implementation or any other.

``python -m sealring_protocol.conformance`` is the command. `files` finds and reads the vectors,
`kinds` and `security_kinds` run each kind, `ends` drives one end of a link, `brains` the control
machines, `streams` cuts what goes in, `answers` compares, and `fields` and `local_fields` tell
messages as the vectors do.

Of this package only `files` and the command read files, and only the command prints. Nothing
outside of this room imports it. ``tests/test_floors.py`` says what each module may import.
"""
