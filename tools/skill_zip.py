"""Packs the worker for the skill: skills/build-infra/scripts/cpinfra_worker.zip, the same bytes everywhere.

`tools/skill_zip.py` writes it; `tools/skill_zip.py --check` fails if it is not what the sources would give.
Its member `_cpinfra_worker/NAME` is the name, with the hash, that the zip has in a run folder. A comment of
the archive would do, but no Python before 3.8 runs a zip that has one, and those must get as far as to say
that they are too old.
"""

from __future__ import annotations

import io
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))  # the tree that is to be packed, whatever is installed

from cpinfra.proof import delivery  # noqa: E402 - see above

NAME = f"{delivery.PACKAGE}/NAME"
TARGET = ROOT / "skills" / "build-infra" / "scripts" / "cpinfra_worker.zip"


def main(arguments: list[str]) -> int:
    """Write or check; returns the exit code."""
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: skill_zip.py [--check]\n")
        return 2
    data = packed(ROOT / "src" / "cpinfra")
    if not arguments:
        TARGET.write_bytes(data)
    elif not TARGET.is_file() or TARGET.read_bytes() != data:
        sys.stderr.write(f"{TARGET.relative_to(ROOT)} is not what the sources give: run `make skill`\n")
        return 1
    return 0


def packed(source: Path) -> bytes:
    """The worker's zip with its name as one more member."""
    with tempfile.TemporaryDirectory(prefix="cpinfra-skill-") as folder:
        built = delivery.build_zip(source, Path(folder))
        buffer = io.BytesIO(built.read_bytes())
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_STORED) as archive:
        like = archive.getinfo("__main__.py")
        entry = zipfile.ZipInfo(NAME, date_time=like.date_time)
        entry.create_system, entry.external_attr = like.create_system, like.external_attr
        archive.writestr(entry, f"{built.name}\n")
    return buffer.getvalue()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
