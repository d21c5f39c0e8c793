"""Build hook of the wheel: packs the worker's zip into it, as package data."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_NAME = "_cpinfra_source"


class WorkerZipHook(BuildHookInterface[Any]):
    """Adds `cpinfra/_shipped/cpinfra_worker-<hash>.zip`; an editable install packs its own tree instead."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the zip outside the source tree and tell hatch where it goes."""
        if version == "editable":
            return
        package = Path(self.root) / "src" / "cpinfra"
        delivery = _delivery(package)
        self._folder = tempfile.TemporaryDirectory(prefix="cpinfra-wheel-")
        shipped = delivery.build_zip(package, Path(self._folder.name))
        build_data["force_include"][str(shipped)] = f"cpinfra/{delivery.SHIPPED}/{shipped.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the folder once the wheel holds the zip."""
        if version != "editable":
            self._folder.cleanup()


def _delivery(package: Path) -> ModuleType:
    """The module that packs the zip: cpinfra is not installed while it is built, or another one is.

    So the package of the source tree is loaded under a name of its own, in which relative imports work.
    """
    init = package / "__init__.py"
    spec = importlib.util.spec_from_file_location(_NAME, init, submodule_search_locations=[str(package)])
    if spec is None:
        raise RuntimeError(f"{init}: cannot be loaded")
    sys.modules[_NAME] = importlib.util.module_from_spec(spec)
    return importlib.import_module(f"{_NAME}.proof.delivery")
