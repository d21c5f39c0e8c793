"""What the software is, and whether it fits the GPUs; with what models require compared by `packaging`."""

from __future__ import annotations

import os

from .node import probe as node
from .node.probe import Probed
from .node.probe import ProbeRequest
from .software import requirements

__all__ = ["ProbeRequest", "Probed", "probe"]


def probe(request: ProbeRequest) -> Probed:
    """Probe; see `node.probe.probe`.

    Raises:
        UsageProblem: the request makes no sense.
        OSError: there is no room for a run folder.
    """
    probed = node.probe(request, os.environ, of_model=requirements.findings)
    models = (probed.document["software"] or {}).get("models", ())
    if any(model["requires_dist"] or model["requires_python"] for model in models):
        note = "what the models require was compared with what is installed, by the rules of `packaging`"
        probed.document["self_consistency"]["notes"].append(note)
    return probed
