"""Code that runs in the target interpreter: torch and the standard library, nothing else of cpinfra."""
