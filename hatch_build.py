"""Build hook of the wheel: packs the worker's zip into it, as package data."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


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
    """The module that packs the zip, loaded by its path: cpinfra is not installed while it is built."""
    spec = importlib.util.spec_from_file_location("_cpinfra_delivery", package / "proof" / "delivery.py")
    if spec is None or spec.loader is None:
        raise RuntimeError(f"{package}: cannot load proof/delivery.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
