"""Imports parts of mlx-lm late, and without what they bring along.

`import mlx_lm` imports transformers and the model hub's client, which takes three seconds on a
small machine. An engine needs neither: `mlx_lm` for "models.*", and `model_loader`, take 0.15 s.
They put the package into `sys.modules` without running its ``__init__``, which runs once somebody
asks for something that it defines. `without_mlx` is for a node, which needs transformers and not
MLX. It does the same with transformers, whose ``__init__`` reads the source of every model.

`mlx_lm.utils` lowers the process's limits on open files, also the hard one, which an ordinary user
cannot raise again. So no module imports mlx_lm at its top, and `resource.setrlimit` does nothing
while it is imported here.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from sealring_model.errors import LoadError

_NAME: Final = "mlx_lm"
_HUB: Final = "huggingface_hub"

_TRANSFORMERS: Final[Mapping[str, Mapping[str, str]]] = {
    "transformers": {
        "AutoTokenizer": "models.auto.tokenization_auto",
        "CONFIG_MAPPING": "models.auto.configuration_auto",
        "PreTrainedConfig": "configuration_utils",
        "PreTrainedTokenizer": "tokenization_python",
        "PreTrainedTokenizerFast": "tokenization_utils_tokenizers",
    },
    "transformers.models": {},
}
"""The packages of transformers whose ``__init__`` reads every model, and the module of each name
that the tokenizers of most models are made with."""

_finishing: Final = threading.RLock()


@functools.cache
def mlx_lm(module: str) -> ModuleType:
    """The module ``mlx_lm.<module>``. Raises `LoadError` if mlx-lm is not installed."""
    package = _package()
    with _limits_kept():
        if not module.startswith("models."):
            _put_transformers_off()
            _finish(package)
        return importlib.import_module(f"{_NAME}.{module}")


@functools.cache
def model_loader() -> ModuleType:
    """A copy of ``mlx_lm.utils`` that loads models, but no tokenizers and nothing from the hub.

    Raises `LoadError` if mlx-lm is not installed.
    """
    _package()
    private = _bare("sealring_model._mlx_lm_loader")
    _stand_in(f"{private}.tokenizer_utils", "TokenizerWrapper", "load")
    hub = _HUB in sys.modules
    if not hub:
        _stand_in(_HUB, "snapshot_download")
    try:
        with _limits_kept():
            return importlib.import_module(f"{private}.utils")
    finally:
        if not hub:
            del sys.modules[_HUB]


def without_mlx(module: str) -> ModuleType:
    """A copy of mlx-lm's *module*, which must not need MLX.

    Raises `LoadError` if mlx-lm is not installed.
    """
    bare = _bare("sealring_model._mlx_lm")
    _put_transformers_off()
    with _torch_hidden():
        return importlib.import_module(f"{bare}.{module}")


def _put_transformers_off() -> None:
    """Put the packages of `_TRANSFORMERS` into `sys.modules`, unless they are there."""
    if "transformers" not in sys.modules and importlib.util.find_spec("transformers"):
        for name, homes in _TRANSFORMERS.items():
            _put_off(name, homes)


def _put_off(name: str, homes: Mapping[str, str]) -> None:
    """Put the package *name* of transformers into `sys.modules` with its ``__init__`` not run.
    What its modules in *homes* define comes from there; whoever asks for something else gets it
    from the whole package, which takes the place of this one."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise LoadError(f"{name} is not installed")
    package = importlib.util.module_from_spec(spec)

    def missing(asked: str) -> Any:
        """The module of *asked* if it is known, or all modules."""
        if asked == "__version__":
            return metadata.version("transformers")
        if asked.startswith("__") and asked != "__all__":
            raise AttributeError(f"module {name!r} has no attribute {asked!r}", name=asked)
        with _torch_hidden():
            if asked in homes:
                with suppress(ImportError, AttributeError):  # another release may have it elsewhere
                    found = getattr(importlib.import_module(f"{name}.{homes[asked]}"), asked)
                    return vars(package).setdefault(asked, found)
            _finish(package)
            return getattr(sys.modules[name], asked)

    vars(package)["__getattr__"] = missing
    sys.modules[name] = package


def _spec() -> ModuleSpec:
    # transformers announces on stderr that it found no torch, which nobody here needs.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    found = importlib.util.find_spec(_NAME)
    if found is None or not found.submodule_search_locations:
        raise LoadError("mlx-lm is not installed")
    return found


@functools.cache
def _bare(name: str) -> str:
    """Make a package *name* that is mlx-lm without its ``__init__``. Its name."""
    package = ModuleType(name)
    package.__path__ = list(_spec().submodule_search_locations or ())
    sys.modules[name] = package
    return name


def _package() -> ModuleType:
    """mlx-lm's own package: as imported, or new with its ``__init__`` not run."""
    if _NAME in sys.modules:
        return sys.modules[_NAME]
    package = importlib.util.module_from_spec(_spec())

    def missing(name: str) -> Any:
        """Runs ``__init__`` when somebody asks for what it defines."""
        if not name.startswith("__") or name in {"__all__", "__version__"}:
            with _limits_kept():
                _finish(package)
            if name in vars(package):
                return vars(package)[name]
        raise AttributeError(f"module {_NAME!r} has no attribute {name!r}", name=name, obj=package)

    vars(package)["__getattr__"] = missing
    sys.modules[_NAME] = package
    return package


def _finish(package: ModuleType) -> None:
    """Run the ``__init__`` of *package*, unless that was done. Where it puts another module in its
    place, *package* has all that is asked of it from that."""
    with _finishing:
        if sys.modules[package.__name__] is not package:
            return
        missing = vars(package).pop("__getattr__", None)
        if missing and (found := package.__spec__) and found.loader:
            try:
                found.loader.exec_module(package)
            except BaseException:
                vars(package)["__getattr__"] = (
                    missing  # so that the next call fails with the reason, too
                )
                raise
            if (whole := sys.modules[package.__name__]) is not package:
                vars(package)["__getattr__"] = functools.partial(getattr, whole)


def _stand_in(name: str, *functions: str) -> None:
    def absent(*_: Any, **__: Any) -> None:
        raise LoadError(f"{name} is not imported here")

    sys.modules[name] = module = ModuleType(name)
    vars(module).update(dict.fromkeys(functions, absent))


@contextmanager
def _torch_hidden() -> Iterator[None]:
    """Within the block PyTorch is not there. transformers, which looks for it once, then never
    imports it: tokenizers do without, and its libraries do not fit into a text worker's memory."""
    hides = "torch" not in sys.modules
    if hides:
        sys.modules["torch"] = None  # type: ignore[assignment]  # as the import system has it
    try:
        yield
    finally:
        if hides:
            del sys.modules["torch"]


@contextmanager
def _limits_kept() -> Iterator[None]:
    real: Callable[..., None] = resource.setrlimit

    def ignore(*_: Any) -> None:
        """In place of `resource.setrlimit`."""

    resource.setrlimit = ignore
    try:
        yield
    finally:
        resource.setrlimit = real
