"""`hone kappa` on files as people have them."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hone_cli.main import main

SHARED = Path(os.environ.get("HONE_SHARED") or Path(__file__).parents[4] / "shared")
PANDALM = SHARED / "data" / "pandalm"
HANNA = SHARED / "data" / "hanna" / "user_study.csv"
needs_shared = pytest.mark.skipif(
    not PANDALM.exists(), reason=f"{PANDALM} is not there; set HONE_SHARED"
)

WIDE = "id,text,anna,ben\n1,one,good,good\n2,two,bad,good\n3,three,good,good\n4,four,bad,bad\n"
Hone = Callable[..., tuple[int, str, str]]


@pytest.fixture
def hone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Hone:
    """Runs the command in an empty folder; returns exit code and what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["kappa", *arguments])
        return (code, *capsys.readouterr())

    return run


def _kappas(out: str) -> dict[str, float | None]:
    return {row["name"]: row["kappa"]["kappa"] for row in json.loads(out)["comparisons"]}


def test_wide_csv_prints_a_table_with_words_and_warnings(hone: Hone) -> None:
    Path("labels.csv").write_text(WIDE)
    code, out, err = hone("labels.csv", "--ignore", "text")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "4 items, people anna, ben; labels bad, good"
    assert lines[2].split() == [
        "raters",
        "items",
        "left",
        "out",
        "po",
        "pe",
        "kappa",
        "95%",
        "interval",
        "strength",
    ]
    cells = lines[3].split("  ")
    assert cells[0] == "anna ~ ben"
    assert lines[3].split()[3:8] == ["4", "0", "0.750", "0.500", "0.500"]
    assert lines[3].endswith("moderate")
    assert "Landis & Koch 1977" in out
    assert "warning: fewer than 30 items" in out


@pytest.mark.parametrize(
    ("name", "text", "options"),
    [
        ("bom.csv", "\ufeff" + WIDE, ("--ignore", "text")),
        ("crlf.csv", WIDE.replace("\n", "\r\n"), ("--raters", "anna,ben")),
        ("semicolon.csv", WIDE.replace(",", ";"), ("--raters", "anna", "--raters", "ben")),
        ("tabs.tsv", WIDE.replace(",", "\t"), ("--ignore", "text")),
        ("quoted.csv", WIDE.replace("two", '"two,\nin ""two"" lines"'), ("--ignore", "text")),
        ("index.csv", "\n".join(f"{i},{x}" if i else f",{x}" for i, x in enumerate(WIDE.split())),
         ("--ignore", "text")),
        ("rows.jsonl", "\n".join(
            json.dumps(dict(zip(WIDE.split()[0].split(","), line.split(","), strict=True)))
            for line in WIDE.split()[1:]), ("--ignore", "text")),
        ("list.json", json.dumps(
            [dict(zip(WIDE.split()[0].split(","), line.split(","), strict=True))
             for line in WIDE.split()[1:]]), ("--ignore", "text")),
        ("long.csv", "item,rater,label\n" + "".join(
            f"{line.split(',')[0]},{rater},{line.split(',')[column]}\n"
            for line in WIDE.split()[1:] for rater, column in (("anna", 2), ("ben", 3))),
         ("--long",)),
    ],
)  # fmt: skip
def test_the_same_labels_in_any_form_have_the_same_kappa(
    hone: Hone, name: str, text: str, options: Sequence[str]
) -> None:
    Path(name).write_text(text, newline="")
    code, out, err = hone(name, *options, "--json")
    assert (code, err) == (0, "")
    assert _kappas(out) == {"anna ~ ben": pytest.approx(0.5)}


@pytest.mark.parametrize(
    ("name", "data", "options", "message"),
    [
        ("no.csv", None, (), "no.csv: cannot be read: No such file or directory"),
        ("labels.xlsx", b"x", (), "labels.xlsx: found .xlsx, expected .csv, .tsv, .jsonl or .json"),
        ("empty.csv", b"", (), "empty.csv: is empty, expected a header and rows"),
        ("empty.jsonl", b"\n", (), "empty.jsonl: is empty; expected one JSON object per line"),
        ("header.csv", b"id,a,b\n", (), "header.csv: has no rows, expected at least one with labels"),
        ("one.csv", b"id,a\n1,x\n", (), "raters: found only 'a', expected at least two raters"),
        ("twice.csv", b"id,a,a\n1,x,y\n", (), "twice.csv:1: the column 'a' stands twice"),
        ("short.csv", b'id,a,b\n"1\n2",x,y\n3,x\n', (), "short.csv:4: found 2 fields, expected 3"),
        ("open.csv", b'id,a,b\n1,x,"y\n', (), "open.csv:2: is not CSV: unexpected end of data"),
        ("latin.csv", b"id,a,b\n1,x,y\n2,\xe4,y\n", (), "latin.csv:3: is not UTF-8 (byte 0xe4)"),
        ("utf16.csv", "id,a,b\n1,x,y\n".encode("utf-16"), (), "utf16.csv:1: is not UTF-8"),
        ("same.csv", b"id,a,b\n7,x,y\n8,x,y\n7,y,y\n", (),
         "same.csv:4: 'a' labels item '7' again, first at same.csv:2"),
        ("noid.csv", b"id,a,b\n,x,y\n", (), "noid.csv:2: id: found no id, expected a text"),
        ("nan.jsonl", b'{"id": 1, "a": NaN, "b": 1}\n', (),
         "nan.jsonl:1: has NaN, which is not a JSON number; null is a missing label"),
        ("nan.json", b'[{"id": 1, "a": NaN, "b": 1}]', (), "nan.json: has NaN, which is not a JSON"),
        ("half.json", b'[{"id": 1, "a": "\\ud800", "b": 1}]', (),
         "half.json[0]: holds half of a character"),
        ("deep.json", b'[{"a": ' + b"[" * 200 + b"]" * 200 + b"}]", (), "deep.json[0]: is nested too"),
        ("name.json", b'[{"id": 1, "a\\ud800": 1, "b": 1}]', (), "name.json[0]: holds half of a"),
        ("broken.json", b'[{"id": 1,\n', (), "broken.json:2: is not JSON"),
        ("object.json", b'{"id": 1}', (), "object.json: found a mapping with id, expected a list"),
        ("numbers.json", b"[1]", (), "numbers.json[0]: found the number 1, expected an object"),
        ("cut.jsonl", b'{"id": 1, "a": 1, "b": 2}\n{"id": 2,\n', (), "cut.jsonl:2: is not JSON"),
        ("lists.jsonl", b'{"id": 1, "a": [1], "b": 2}\n', (),
         "lists.jsonl:1: a: found [1], expected a word, a number, or null; if 'a' is no rater"),
        ("name.csv", b"id,anna,b\n1,x,y\n", ("--raters", "ana,b"),
         "name.csv: has no column 'ana'; did you mean anna?"),
        ("long.csv", b"item,rater,label\n1,,x\n", ("--long",),
         "long.csv:2: rater: found nothing, expected the rater's name"),
        ("long.csv", b"item,rater,verdict\n1,a,x\n", ("--long",), "has no column 'label'"),
        ("again.csv", b"item,rater,label\n1,a,x\n1,a,x\n", ("--long",),
         "again.csv:3: 'a' labels item '1' again, first at again.csv:2"),
        ("words.csv", b"id,a,b\n1,x,y\n2,z,z\n", ("--weights", "linear"),
         "weights: linear needs labels in an order, found 'x', 'y', 'z'"),
        ("map.csv", b"id,a,b\n1,x,y\n", ("--map", "Tie"), "--map: found 'Tie', expected LABEL=LABEL"),
        ("j.csv", b"id,a,b\n1,x,y\n", ("--judge", "c"), "--judge: found 'c', expected a file"),
        ("rows.csv", b"item,rater,label\n1,a,x\n", (),
         "rows.csv: has columns rater and label: if a row is one label add --long"),
        ("who.csv", b"item,rater,label\n1,anna,x\n", ("--long", "--raters", "ana"),
         "who.csv: has no label of rater 'ana'; it has none"),
        ("x.csv", b"id,a,b\n1,x,y\n", ("--minimum", "nan"), "minimum: found nan, expected a number"),
        ("x.csv", b"id,a,b\n1,x,y\n", ("--minimum", "1.5"), "minimum: found 1.5, expected a number"),
        ("x.csv", b"id,a,b\n1,x,y\n", ("--order", "w" * 201), "order: found a text of 201"),
        ("x.csv", b"id,a,b\n1,x,y\n", ("--missing", "w" * 201), "labels: found a text of 201"),
    ],
)  # fmt: skip
def test_bad_input_names_file_and_line_and_what_would_be_right(
    hone: Hone, name: str, data: bytes | None, options: Sequence[str], message: str
) -> None:
    if data is not None:
        Path(name).write_bytes(data)
    code, out, err = hone(name, *options)
    assert (code, out) == (2, "")
    assert err.startswith("hone: ") and message in err
    assert "Traceback" not in err


def test_all_bad_rows_are_told_at_once(hone: Hone) -> None:
    Path("bad.csv").write_text("id,a,b\n" + "1,x\n" * 30)
    _, _, err = hone("bad.csv")
    lines = err.splitlines()
    assert lines[0].startswith("hone: bad.csv:2: ") and lines[19].startswith("bad.csv:21: ")
    assert lines[20] == "and 10 more"


def test_column_of_texts_is_no_rater(hone: Hone) -> None:
    rows = "".join(f"{i},answer {i},{i % 2},{i % 3 % 2}\n" for i in range(40))
    Path("labels.csv").write_text("id,answer,a,b\n" + rows)
    code, _, err = hone("labels.csv")
    assert code == 2
    assert "answer: found 40 different labels in 40 rows. if 'answer' is no rater" in err
    few = "".join(f"{i},answer {i},{i % 2},{i % 3 % 2}\n" for i in range(9))
    Path("few.csv").write_text("id,answer,a,b\n" + few)
    code, out, _ = hone("few.csv")
    assert code == 0
    assert "warning: no other rater uses a label of answer" in out


def test_numbers_of_any_type_are_one_label_and_gaps_are_counted(hone: Hone) -> None:
    rows = [
        {"id": 1, "a": 1, "b": "1"},
        {"id": 2, "a": "2.0", "b": 2},
        {"id": 3, "a": None, "b": 2},
        {"id": 4, "a": 1.0},
        {"id": 5, "a": "", "b": "NaN"},
    ]
    Path("labels.jsonl").write_text("\n".join(map(json.dumps, rows)))
    code, out, _ = hone("labels.jsonl", "--json")
    (row,) = json.loads(out)["comparisons"]
    assert (code, row["kappa"]["kappa"], row["kappa"]["num_items"], row["num_missing"]) == (
        0,
        1,
        2,
        3,
    )


def test_words_for_missing_and_labels_to_read_as_others(hone: Hone) -> None:
    Path("labels.csv").write_text("id,a,b\n1,Tie,0\n2,1,1\n3,garbage,1\n")
    _, out, _ = hone("labels.csv", "--map", "Tie=0", "--missing", "garbage", "--json")
    found = json.loads(out)
    assert found["labels"] == ["0", "1"]
    assert found["comparisons"][0]["kappa"]["num_items"] == 2


def test_two_files_are_read_as_one(hone: Hone) -> None:
    Path("one.csv").write_text("id,a,b\n1,x,x\n2,y,y\n")
    Path("two.csv").write_text("id,a,b\n3,x,y\n")
    _, out, _ = hone("one.csv", "two.csv", "--json")
    assert json.loads(out)["num_items"] == 3


def test_long_files_without_raters_are_a_rater_each(hone: Hone) -> None:
    Path("anna.csv").write_text("item,label\n1,x\n2,y\n")
    Path("ben.csv").write_text("item,label\n1,x\n2,y\n3,x\n")
    _, out, _ = hone("anna.csv", "ben.csv", "--long", "--json")
    assert _kappas(out) == {"anna ~ ben": 1.0}


def test_judge_file_joins_by_id_and_has_no_vote(hone: Hone) -> None:
    Path("labels.csv").write_text("id,a,b,c\n1,x,x,y\n2,y,y,y\n3,x,y,x\n")
    Path("judge.jsonl").write_text(
        '{"id": 3, "verdict": "x"}\n{"id": "1", "verdict": "y"}\n{"id": 9, "verdict": "y"}\n'
    )
    code, out, _ = hone("labels.csv", "--judge", "judge.jsonl", "--json")
    found = json.loads(out)
    (row,) = [row for row in found["comparisons"] if row["against"] == "majority"]
    assert (code, row["first"], row["kappa"]["num_items"], row["num_missing"]) == (0, "judge", 2, 1)
    assert found["people"] == ["a", "b", "c"]
    assert "1 rows are of items that nobody else labelled" in found["warnings"][0]
    _, out, _ = hone("labels.csv", "--judge", "c", "--json")
    assert json.loads(out)["judges"] == ["c"]


@pytest.mark.parametrize(
    ("judge", "options", "message"),
    [
        ("id,why,verdict\n1,because,x\n", (), "which column is the label? Write j.csv:COLUMN"),
        ("key,label\n1,x\n", (), "j.csv: has no column 'id'; it has key, label"),
        ("id,label\n8,x\n", (), "j.csv: has no item in common with the labels, by id"),
        ("id,label\n1,x\n1,y\n", (), "j.csv:3: 'j' labels item '1' again, first at j.csv:2"),
    ],
)
def test_judge_file_that_does_not_fit_is_refused(
    hone: Hone, judge: str, options: Sequence[str], message: str
) -> None:
    Path("labels.csv").write_text("id,a,b\n1,x,y\n")
    Path("j.csv").write_text(judge)
    code, _, err = hone("labels.csv", "--judge", "j.csv", *options)
    assert code == 2 and message in err


def test_minimum_is_an_exit_code_and_a_sentence(hone: Hone) -> None:
    rows = "".join(f"{i},{i % 2},{i % 2 if i % 5 else 1 - i % 2}\n" for i in range(60))
    Path("labels.csv").write_text("id,a,b\n" + rows)
    code, out, err = hone("labels.csv", "--minimum", "0.6")
    assert code == 1 and "a ~ b" in out
    assert err.startswith("hone: the agreement is below the minimum: a ~ b has kappa 0.600 [0.")
    assert "the lower end of the interval is below the minimum of 0.6" in err
    assert hone("labels.csv", "--minimum", "0.3")[0] == 0
    code, out, _ = hone("labels.csv", "--minimum", "0.6", "--json")
    assert code == 1 and json.loads(out)["minimum"]["met"] is False


def test_raters_that_are_named_are_the_only_ones(hone: Hone) -> None:
    Path("long.csv").write_text(
        "item,rater,label\n" + "".join(f"{i},{r},{i % 2}\n" for i in range(4) for r in (0, 1, 2))
    )
    _, out, _ = hone("long.csv", "--long", "--raters", "0,2", "--json")
    assert _kappas(out) == {"0 ~ 2": 1.0}
    Path("wide.csv").write_text("id,a,b,c,judge\n1,x,x,y,x\n2,y,y,x,y\n")
    _, out, _ = hone("wide.csv", "--raters", "a,b", "--judge", "judge", "--json")
    found = json.loads(out)
    assert (found["people"], found["judges"]) == (["a", "b"], ["judge"])


def test_rater_whose_name_is_a_number_is_one(hone: Hone) -> None:
    rows = [{"item": i, "rater": r, "label": i % 2} for i in range(4) for r in (0, 1)]
    Path("long.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert _kappas(hone("long.jsonl", "--long", "--json")[1]) == {"0 ~ 1": 1.0}


def test_text_longer_than_the_csv_module_likes_is_read(hone: Hone) -> None:
    Path("labels.csv").write_text(WIDE.replace("two", "t" * 200_000))
    assert hone("labels.csv", "--ignore", "text")[0] == 0


def test_equal_seeds_give_equal_intervals(hone: Hone) -> None:
    rows = "".join(f"{i},{i % 3},{(i * 7 % 11) % 3}\n" for i in range(50))
    Path("labels.csv").write_text("id,a,b\n" + rows)
    assert hone("labels.csv", "--seed", "3") == hone("labels.csv", "--seed", "3")
    assert hone("labels.csv", "--seed", "3") != hone("labels.csv", "--seed", "4")


def test_control_characters_in_labels_do_not_reach_the_terminal(hone: Hone) -> None:
    Path("labels.csv").write_text("id,a\x1b[2J,b\n1,x\x1b[2J,x\n2,y,y\n")
    code, out, _ = hone("labels.csv")
    assert code == 0 and "\x1b" not in out
    _, _, err = hone("labels.csv", "--minimum", "0.6")
    assert "\x1b" not in err and "\\x1b" in err


@needs_shared
def test_pandalm_through_the_command(hone: Hone) -> None:
    judges: list[str] = []
    for name, column in (("gpt-3.5-turbo", "gpt_result"), ("pandalm-7b", "pandalm_result")):
        judges += ["--judge", f"{PANDALM}/{name}-testset-v1.json:{column}"]
    raters = ("--raters", "annotator1,annotator2,annotator3")
    options = ("--map", "Tie=0", "--missing", "garbage", "--minimum", "0.6", "--json")
    code, out, err = hone(f"{PANDALM}/testset-v1.json", *raters, *judges, *options)
    kappas = {name: round(kappa or 0, 3) for name, kappa in _kappas(out).items()}
    assert kappas["annotator1 ~ annotator2"] == 0.816
    assert kappas["annotator1 ~ annotator3"] == 0.849
    assert kappas["annotator2 ~ annotator3"] == 0.832
    assert kappas["gpt-3.5-turbo-testset-v1 ~ majority"] == 0.481
    assert kappas["pandalm-7b-testset-v1 ~ majority"] == 0.415
    assert code == 1 and err.count("is below the minimum of 0.6") == 2
    assert hone(f"{PANDALM}/testset-v1.json", *raters, "--minimum", "0.75")[0] == 0


@needs_shared
def test_hanna_constant_label_is_undefined_through_the_command(hone: Hone) -> None:
    options = ("--long", "--id", "Input.story_id,Input.explanation", "--label-column")
    code, out, _ = hone(str(HANNA), *options, "Answer.a-4-incorrectness.1")
    assert code == 0
    rows = [line for line in out.splitlines() if line.startswith("rater ")]
    assert len(rows) == 6
    assert all("undefined" in row and row.endswith("both always say '0'") for row in rows)
    assert "Fleiss' kappa of 3 people over 100 items: undefined (all always say '0')" in out
    assert "warning: kappa is undefined, which is neither 0 nor 1" in out
    code, _, err = hone(str(HANNA), *options, "Answer.a-4-incorrectness.1", "--minimum", "0")
    assert code == 1 and "undefined kappa (both always say '0') over 100 items" in err
    _, rare, _ = hone(str(HANNA), *options, "Answer.a-1-guidelines.1")
    assert "the kappa paradox" in rare


def test_json_names_every_figure(hone: Hone) -> None:
    Path("labels.csv").write_text("id,a,b\n1,x,x\n2,y,y\n3,x,y\n")
    found: dict[str, Any] = json.loads(hone("labels.csv", "--json", "--weights", "linear")[1])
    (row,) = found["comparisons"]
    assert row["name"] == "a ~ b" and row["against"] == "rater"
    kappa = row["kappa"]
    assert {"observed", "expected", "agreement", "pabak", "bias_index"} <= set(kappa)
    assert kappa["strength"] == "fair" and kappa["undefined"] == ""
    assert set(kappa["interval"]) == {"low", "high", "num_undefined"}
