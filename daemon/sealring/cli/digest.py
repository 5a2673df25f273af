"""`sealring digest`."""

from __future__ import annotations

from sealring_model.loading.weights import MANIFEST, write_manifest
from sealring_trio.errors import OperationError
from sealring_trio.files.models import describe_model, find_whole_model

from sealring.output import print_facts, print_json


def digest(model: str, *, json: bool = False) -> None:
    """Hash every tensor of MODEL into a manifest, and print the model's digest.

    With the manifest, sealring.json in the model's folder, each rank checks
    the weights that it reads, and ranks whose manifests differ refuse to work
    together. Without it they compare names, types and shapes, and a sample
    of each layer's weights.

        sealring digest models/llama-8b

    Next: copy the model, manifest included, to every machine.

    Parameters
    ----------
    model
        Folder of the model, or a hub id.
    json
        Print one JSON object.
    """
    folder = find_whole_model(model)
    describe_model(folder)
    try:
        manifest = write_manifest(folder)
    except OSError as error:
        raise OperationError(
            f"cannot write {folder / MANIFEST}: {error.strerror}",
            "Make the folder writable, or copy the model to one that is.",
        ) from None
    info = describe_model(folder)
    facts = {
        "model": str(folder),
        "digest": info.digest.hex(),
        "manifest": str(manifest),
        "tensors": len(info.entries),
        "bytes": info.size,
    }
    if json:
        print_json(facts)
        return
    print_facts((name, str(value)) for name, value in facts.items())
