"""Puts the conformance vectors, which are in ../spec/vectors, into what is built.

A wheel made from a source distribution finds them there already.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Vectors(BuildHookInterface):
    """Called by hatchling."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the vectors and their README to *build_data*, but not to an editable install."""
        if version == "editable":
            return
        folder = Path(self.root, "..", "spec", "vectors").resolve()
        for path in (*folder.glob("*.json"), *folder.glob("README.md")):
            place = f"sealring_protocol/conformance/vectors/{path.name}"
            build_data["force_include"][str(path)] = place
