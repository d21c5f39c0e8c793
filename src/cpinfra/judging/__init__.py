"""From what was learnt to a verdict, a report and its place on disk. Imports pydantic: import it late."""
