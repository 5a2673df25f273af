"""The TCP connections of a collective, carried in tunnel links."""
