"""Days of the calendar in the notations that leave no doubt: March 7, 2024; 7 March 2024; 2024-03-07."""

import re

_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september",
    "october", "november", "december",
)  # fmt: skip
_MONTH = r"(?P<month>[A-Za-z]{3,9})\.?"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>\d{4})"
_FORMS = tuple(
    re.compile(pattern)
    for pattern in (
        rf"{_MONTH}\s+{_DAY}(?:(?:,|\s)\s*{_YEAR})?",
        rf"(?:the\s+)?{_DAY}\s+(?:of\s+)?{_MONTH}(?:,?\s+{_YEAR})?",
        rf"{_YEAR}-(?P<number>\d{{2}})-{_DAY}",
    )
)


def read_date(text: str) -> str | None:
    """Return a day as `date 2024-03-07`, or `date 03-07` without a year; None if it is none."""
    if len(text) > 30 or not (text[0].isdigit() or text[0].isalpha()):
        return None
    for form in _FORMS:
        match = form.fullmatch(text)
        if match is None:
            continue
        groups = match.groupdict()
        month = int(groups["number"]) if groups.get("number") else _month(groups["month"])
        day = int(groups["day"])
        if not 1 <= month <= 12 or not 1 <= day <= 31:
            return None
        year = f"{groups['year']}-" if groups["year"] else ""
        return f"date {year}{month:02d}-{day:02d}"
    return None


def _month(name: str) -> int:
    """Return the number of a month by its name or its first letters, 0 if it is none."""
    lowered = name.lower()
    known = [n for n, month in enumerate(_MONTHS, 1) if month == lowered]
    short = [n for n, month in enumerate(_MONTHS, 1) if month[:3] == lowered or lowered == "sept"]
    return (known or (short[:1] if lowered != "sept" else [9]) or [0])[0]
