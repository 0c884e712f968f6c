from pathlib import Path

import pytest

from servicekit.errors import PermissionDenied, Unauthenticated
from servicekit.tokens import (
    TokenMinter,
    TokenVerifier,
    generate_key_file,
    require_token,
    set_current,
)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys" / "token.pem"
    generate_key_file(path)
    return path


def test_minted_token_verifies_until_it_expires(key_file: Path) -> None:
    now = [1000.0]
    token = TokenMinter(key_file, lambda: now[0]).mint("r1", 3, "agent", ttl_seconds=10)
    verifier = TokenVerifier(key_file, lambda: now[0])
    said = verifier.verify(token)
    assert (said.rollout_id, said.epoch, said.role) == ("r1", 3, "agent")
    now[0] = 1012.0
    with pytest.raises(PermissionDenied, match="expired"):
        verifier.verify(token)


def test_key_file_is_private_and_kept(key_file: Path) -> None:
    before = key_file.read_bytes()
    assert key_file.stat().st_mode & 0o077 == 0
    generate_key_file(key_file)
    assert key_file.read_bytes() == before


def test_token_of_another_key_or_tampered_is_refused(key_file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    generate_key_file(other)
    verifier = TokenVerifier(key_file, lambda: 0.0)
    with pytest.raises(Unauthenticated, match="not known"):
        verifier.verify(TokenMinter(other, lambda: 0.0).mint("r1", 1, "agent", 10))
    good = TokenMinter(key_file, lambda: 0.0).mint("r1", 1, "agent", 10)
    head, body, signature = good.split(".")
    flipped = ("A" if body[5] != "A" else "B").join((body[:5], body[6:]))
    for bad in (f"{head}.{flipped}.{signature}", "not a token", "", f"{head}.{body}."):
        with pytest.raises(Unauthenticated):
            verifier.verify(bad)


def test_rotated_keys_verify_side_by_side(key_file: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.pem"
    generate_key_file(new)
    old_token = TokenMinter(key_file, lambda: 0.0).mint("r1", 1, "agent", 10)
    both = tmp_path / "both.pem"
    both.write_bytes(new.read_bytes() + key_file.read_bytes())
    verifier = TokenVerifier(both, lambda: 0.0)
    assert verifier.verify(old_token).rollout_id == "r1"
    new_token = TokenMinter(both, lambda: 0.0).mint("r2", 1, "grader", 10)
    assert verifier.verify(new_token).role == "grader"


def test_require_token_names_who_may_do_what(key_file: Path) -> None:
    minter, verifier = TokenMinter(key_file, lambda: 0.0), TokenVerifier(key_file, lambda: 0.0)

    def carry(rollout_id: str, role: str) -> None:
        text = minter.mint(rollout_id, 1, role, 10)  # type: ignore[arg-type]
        set_current(verifier.verify(text), text)

    set_current(None, "")
    with pytest.raises(Unauthenticated):
        require_token("r1")
    carry("r1", "agent")
    assert require_token("r1", "agent").epoch == 1
    with pytest.raises(PermissionDenied, match="another rollout"):
        require_token("r2")
    with pytest.raises(PermissionDenied, match="role agent"):
        require_token("r1", "grader")
    carry("", "operator")
    assert require_token("r2", "agent").role == "operator"
    set_current(None, "")


def test_file_without_a_key_is_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("hello")
    with pytest.raises(ValueError, match="no PEM key"):
        TokenVerifier(empty, lambda: 0.0)
