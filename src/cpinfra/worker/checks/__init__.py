"""The checks: one function per claim, one file per family, found by their `@check` decorator.

A new check is one function in one file here. Its id begins with the name of its file, every argument of
the decorator but `trials` is a literal, and it names at least two data twins that it catches, and of the
others why they cannot act on it.
"""
