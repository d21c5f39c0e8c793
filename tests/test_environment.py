"""What a report tells of the environment in which its ranks ran."""

from __future__ import annotations

import pytest

from cpinfra.proof import environment
from cpinfra.proof.environment import HARDENING
from cpinfra.proof.environment import zygote_environment


def test_what_was_in_force_is_told() -> None:
    """The user's variables that decide what is proven, and ours; no other, and not the cookie."""
    theirs = {"NCCL_DEBUG": "INFO", "UCX_TLS": "tcp", "GLOO_X": "", "TORCH_HOME": "/t", "CUDA_HOME": "/c"}
    told = environment.told({**theirs, "PATH": "/bin", "XNCCL_Y": "1"}, gpu_uuids=("GPU-b", "GPU-a"))

    assert theirs.items() <= told.in_force.items()
    assert HARDENING.items() <= told.in_force.items()
    assert told.in_force["CUDA_VISIBLE_DEVICES"] == "GPU-b,GPU-a"
    assert told.in_force["GLOO_SOCKET_IFNAME"] == "lo"
    ours = {*HARDENING, "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GLOO_SOCKET_IFNAME"}
    assert set(told.in_force) == {*theirs, *ours}
    assert (told.replaced, told.restricting) == ({}, {})


def test_what_is_told_is_what_the_ranks_get() -> None:
    """Both come from the same arguments: nothing is shown that is not in force."""
    base = {"OMP_NUM_THREADS": "16", "NCCL_P2P_DISABLE": "1"}
    made = zygote_environment(base, "c", gpu_uuids=("GPU-a",))

    assert environment.told(base, gpu_uuids=("GPU-a",)).in_force.items() <= made.items()


def test_replaced_are_those_that_had_another_value() -> None:
    """Two of the user's gave way, each with its value; one that was the same already did not."""
    base = {"OMP_NUM_THREADS": "16", "MKL_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "ib0", "PATH": "/bin"}

    assert environment.told(base, gpu_uuids=()).replaced == {
        "GLOO_SOCKET_IFNAME": ("ib0", "lo"),
        "OMP_NUM_THREADS": ("16", "1"),
    }


@pytest.mark.parametrize(
    ("name", "restricting", "harmless"),
    [
        ("NCCL_P2P_DISABLE", ("1", " 1", "0x1", "2"), ("0", "0x0", "", "yes")),
        ("NCCL_SHM_DISABLE", ("1",), ("0",)),
        ("NCCL_IB_DISABLE", ("1",), ("0",)),
        ("NCCL_NVLS_ENABLE", ("0", "off", "00"), ("1", "2", "")),
        ("NCCL_CUMEM_ENABLE", ("0",), ("1",)),
        ("NCCL_P2P_LEVEL", ("LOC", "0"), ("NVL", "SYS", "5")),
        ("NCCL_NET", ("Socket", "IB"), ("",)),
        ("NCCL_NET_PLUGIN", ("none",), ("ofi",)),
        ("NCCL_DEBUG", (), ("INFO", "1", "0")),
    ],
)
def test_restricting_are_those_that_switch_a_transport_off(
    name: str, restricting: tuple[str, ...], harmless: tuple[str, ...]
) -> None:
    """Numbers as NCCL reads them: what is no number is 0, and what is empty is not set."""
    for value in restricting:
        assert environment.told({name: value}, gpu_uuids=()).restricting == {name: value}
    for value in harmless:
        assert environment.told({name: value}, gpu_uuids=()).restricting == {}
