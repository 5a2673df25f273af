"""Measurements of the protocol, each beside a yardstick that alternates with it in the same run."""
