"""What to do about what CUDA says of itself, by the words and numbers that it uses.

Pure; standard library only. Users mix 802, 803 and 804 up; each has another remedy.
"""

from __future__ import annotations

import re

_ADVICE = (
    (
        r"no kernel image|error 209\b",
        "install a torch that has code for this GPU, or name another interpreter with --python",
    ),
    (
        r"driver version is insufficient|driver on your system is too old|error 35\b",
        "update the driver, or install a torch built for an older CUDA",
    ),
    (
        r"unsupported toolchain|unsupported ptx|error 222\b",
        "update the driver: it cannot compile what a newer CUDA made",
    ),
    (
        r"forward compatibility was attempted|error 804\b",
        "take the folder `compat` with its libcuda.so.1 off LD_LIBRARY_PATH; after an update, reboot",
    ),
    (
        r"unsupported display driver|error 803\b",
        "the driver's library and its kernel module differ: reboot, or start the container anew",
    ),
    (
        r"system not yet initialized|error 802\b",
        "the NVLink fabric is not up: have it started (systemctl status nvidia-fabricmanager)",
    ),
    (
        r"busy or unavailable|error 46\b",
        "another process holds this GPU alone: choose another, or wait (nvidia-smi shows who)",
    ),
    (
        r"out of memory",
        "free the GPU's memory or choose another GPU: nvidia-smi shows who holds it",
    ),
    (
        r"no cuda gpus|no cuda-capable device|error 100\b|invalid device ordinal",
        "let torch see the GPUs: CUDA_VISIBLE_DEVICES, the job's or the container's share of them",
    ),
    (
        r"\becc\b|unspecified launch failure|illegal|misaligned|error 999\b|unknown error|values are wrong",
        "look for errors of this GPU (nvidia-smi -q -d ECC; Xid lines in dmesg) and leave it out until then",
    ),
    (
        r"it hung|did not die",
        "look for Xid lines in dmesg; give the GPU more time only if the host is known to be slow",
    ),
)

_OTHERWISE = "run the command to see it alone; look for Xid lines in dmesg"


def remedy(words: str) -> str:
    """What to do, by the first advice whose words occur."""
    return next((advice for sign, advice in _ADVICE if re.search(sign, words, re.IGNORECASE)), _OTHERWISE)
