"""The prover: starts ranks, watches them, judges what they say, and ends them. Standard library only."""
