"""The doors to mlx_lm: late imports, without what they bring along.

`import mlx_lm` imports transformers and the model hub's client, which takes three seconds on a
small machine. An engine needs neither: its doors, `mlx_lm` for "models.*" and `model_loader`, take
0.15 s. The package stands in `sys.modules` unfinished until somebody asks for what its ``__init__``
has. `without_mlx` is for a node's daemon, which needs transformers and does without MLX.

`mlx_lm.utils` lowers the process's limits on open files, the hard one too, which an ordinary user
cannot raise again. So nothing here imports mlx_lm at the top of a module, and while it is imported
`resource.setrlimit` does nothing.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from sealring_model.errors import LoadError

_NAME: Final = "mlx_lm"
_HUB: Final = "huggingface_hub"
_finishing: Final = threading.RLock()


@functools.cache
def mlx_lm(module: str) -> ModuleType:
    """The module ``mlx_lm.<module>``. Raises `LoadError` when there is no mlx-lm."""
    package = _package()
    with _limits_kept():
        if not module.startswith("models."):
            _finish(package)
        return importlib.import_module(f"{_NAME}.{module}")


@functools.cache
def model_loader() -> ModuleType:
    """A copy of ``mlx_lm.utils`` that loads models, and neither tokenizers nor from the hub.

    Raises `LoadError` when there is no mlx-lm.
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
    """mlx-lm's *module*, which must be one that needs no MLX; not the one that `mlx_lm` gives.

    Raises `LoadError` when there is no mlx-lm.
    """
    return importlib.import_module(f"{_bare('sealring_model._mlx_lm')}.{module}")


def _spec() -> ModuleSpec:
    # transformers announces on stderr that it found no torch, which nobody here needs.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    found = importlib.util.find_spec(_NAME)
    if found is None or not found.submodule_search_locations:
        raise LoadError("mlx-lm is not installed")
    return found


@functools.cache
def _bare(name: str) -> str:
    """The name of a package, *name*, that is mlx-lm's without its ``__init__``."""
    package = ModuleType(name)
    package.__path__ = list(_spec().submodule_search_locations or ())
    sys.modules[name] = package
    return name


def _package() -> ModuleType:
    """mlx-lm's own package: as it stands, or new and unfinished."""
    if _NAME in sys.modules:
        return sys.modules[_NAME]
    package = importlib.util.module_from_spec(_spec())

    def missing(name: str) -> Any:
        """Somebody else in this process uses mlx-lm."""
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
    """Run the ``__init__`` of *package*, if that has not been done."""
    with _finishing:
        missing = vars(package).pop("__getattr__", None)
        if missing and (found := package.__spec__) and found.loader:
            try:
                found.loader.exec_module(package)
            except BaseException:
                vars(package)["__getattr__"] = missing  # so that the next who asks sees why, too
                raise


def _stand_in(name: str, *functions: str) -> None:
    def absent(*_: Any, **__: Any) -> None:
        raise LoadError(f"{name} is not imported here")

    sys.modules[name] = module = ModuleType(name)
    vars(module).update(dict.fromkeys(functions, absent))


@contextmanager
def _limits_kept() -> Iterator[None]:
    """Within, nobody changes the process's resource limits."""
    real: Callable[..., None] = resource.setrlimit

    def ignore(*_: Any) -> None:
        """Stands in for `resource.setrlimit`."""

    resource.setrlimit = ignore
    try:
        yield
    finally:
        resource.setrlimit = real
