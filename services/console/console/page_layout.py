"""The frame of every page, and the pieces that several pages share."""

from collections.abc import Sequence
from importlib import resources

from console.markup import Child, Markup, join, tag


def page(
    title: str, *content: Child, crumbs: Sequence[tuple[str, str]] = (), refresh: bool = False
) -> bytes:
    """Returns a whole page.

    Args:
        title: For the browser.
        *content: What is below the bar.
        crumbs: Name and address of the pages above this one.
        refresh: Whether the page should load itself again every ten seconds.
    """
    style = resources.files("console").joinpath("page.css").read_text(encoding="ascii")
    trail = [(" / ", tag("a", name, href=href)) for name, href in crumbs]
    html = tag(
        "html",
        tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", http_equiv="refresh", content="10") if refresh else None,
            tag("title", f"{title} - Hone"),
            tag("style", Markup(style)),
        ),
        tag(
            "body",
            tag("nav", tag("div", tag("a", tag("b", "Hone"), href="/"), trail)),
            tag("main", *content),
        ),
        lang="en",
    )
    return join(Markup("<!doctype html>\n"), html).encode("utf-8")


def message_page(title: str, detail: str) -> bytes:
    """Returns a page that says one thing, for example what was not found."""
    return page(title, tag("h1", title), tag("p", detail, class_="quiet"))


def badge(word: str) -> Markup:
    """Returns an outcome or an end in its colour."""
    known = ("scored", "masked", "failed", "open", "completed", "stopped", "active")
    return tag("span", word, class_=f"badge {word}" if word in known else "badge")


def strip(*facts: tuple[str, Child]) -> Markup:
    """Returns named values in a row; those without a value are left out."""
    return tag(
        "dl",
        [
            tag("div", tag("dt", name), tag("dd", value))
            for name, value in facts
            if value is not None and value != ""
        ],
        class_="card strip",
    )


def table(heads: Sequence[tuple[str, str]], rows: Sequence[Sequence[Child]], empty: str) -> Markup:
    """Returns a table.

    Args:
        heads: Title and class of each column; class n is for numbers, t for what must not break, w for prose.
        rows: Cells.
        empty: What to say when there are no rows.
    """
    if not rows:
        return tag("p", empty, class_="card note quiet")
    head = tag("tr", [tag("th", title, class_=kind or None) for title, kind in heads])
    body = [
        tag(
            "tr",
            [
                tag("td", cell, class_=kind or None)
                for cell, (_, kind) in zip(row, heads, strict=True)
            ],
        )
        for row in rows
    ]
    return tag("div", tag("table", tag("thead", head), tag("tbody", body)), class_="card scroll")
