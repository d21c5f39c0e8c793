"""The record of a build: the launch recipe, the summary, and docs/cp_infra.md beside docs/cp_infra.json."""

from __future__ import annotations
