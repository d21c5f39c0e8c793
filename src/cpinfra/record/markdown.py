"""From a report to docs/cp_infra.md. Pure, but for the template that it reads."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING
from typing import Any

from .. import report
from . import markup
from . import views

if TYPE_CHECKING:
    from jinja2 import Template

MARKER = "<!-- cpinfra/1 cp_infra.md: written by cpinfra, replaced by the next build -->"
"""First line of the file: what lies there without it is not ours."""


def markdown(made: report.Report) -> str:
    """The document of a whole report; sections that were not made are said to be unavailable."""
    return _template().render(marker=markup.Markdown(MARKER), v=views.View(made))


@cache
def _template() -> Template:
    from jinja2 import Environment
    from jinja2 import PackageLoader
    from jinja2 import StrictUndefined

    environment = Environment(
        loader=PackageLoader(__package__),
        undefined=StrictUndefined,
        finalize=_only_markdown,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters.update(prose=markup.prose, code=markup.code, cell=markup.cell)
    return environment.get_template("cp_infra.md.j2")


def _only_markdown(value: Any) -> Any:
    """Refuse what was not made safe: a filter that is forgotten in the template is an error, not a hole."""
    if isinstance(value, markup.Markdown):
        return value
    raise TypeError(f"cp_infra.md.j2 shows a {type(value).__name__} that was not made Markdown")
