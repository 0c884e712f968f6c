"""When an endpoint asks to be asked again."""

from datetime import UTC, datetime
from email.utils import format_datetime

import pytest

from critic.clients.chat_reply import retry_after


@pytest.mark.parametrize(
    ("value", "seconds"), [("7", 7.0), ("0", 0.0), ("-1", None), ("nan", None), ("soon", None)]
)
def test_retry_after_is_seconds_and_nothing_else_is_guessed(
    value: str, seconds: float | None
) -> None:
    assert retry_after({"retry-after": value}, datetime.now(UTC)) == seconds


def test_retry_after_is_a_date_or_milliseconds() -> None:
    now = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)
    later = now.replace(second=9)
    assert retry_after({"retry-after": format_datetime(later, usegmt=True)}, now) == 9.0
    assert retry_after({"retry-after": format_datetime(now, usegmt=True)}, later) == 0.0
    assert retry_after({"retry-after-ms": "250", "retry-after": "9"}, now) == 0.25
    assert retry_after({}, now) is None
