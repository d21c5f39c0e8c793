"""Prove that a machine can run 2D context parallelism, and write down how."""

__version__ = "0.1.0"
