"""Rows from files and folders in the forms that people keep them in; what is wrong is named by file and row."""

import datetime
import gzip
import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runspec.datafiles import DataFileError, RowSource, read_rows_of
from runspec.preferences import parse_preferences
from runspec.problems import RowErrors
from runspec.rows import parse_tasks
from runspec.sft_rows import parse_sft_rows

TASKS = [{"prompt": [{"role": "user", "content": f"{i} + 1?"}], "answer": i + 1} for i in range(6)]


def lines(rows: list[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def rows_of(source: RowSource) -> list[Any]:
    return [json.loads(line) for line in source.data.splitlines()]


def test_file_of_lines_is_taken_to_the_letter(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "x",   "id": 7}')
    assert read_rows_of(file, "data.train").data == b'{"prompt": "x",   "id": 7}\n'


def test_packed_lines_and_a_json_list_are_read(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(lines(TASKS).encode()))
    (tmp_path / "rows.json").write_text("\ufeff" + json.dumps(TASKS, indent=1))
    (tmp_path / "lines.json").write_text(lines(TASKS))
    for name in ("rows.jsonl.gz", "rows.json", "lines.json"):
        assert rows_of(read_rows_of(tmp_path / name, "data.train")) == TASKS


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.jsonl.gz", b"abc", "rows.jsonl.gz is not gzip"),
        ("rows.json", b"[1, ", "rows.json is not JSON: Expecting value"),
        ("rows.json", b'[{"a": 1, "a": 2}]', "rows.json has the key 'a' twice"),
        ("rows.json", b"[" * 100_000, "rows.json is nested too deeply"),
        ("rows.json", b"[" + b"1" * 5000 + b"]", "rows.json holds a number of 5000 digits"),
        ("rows.jsonl.gz", gzip.compress(b"")[:-8] + b"\xff" * 40, "rows.jsonl.gz is not gzip"),
    ],
)
def test_file_that_is_not_what_it_is_called_is_named(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataFileError, match=message):
        read_rows_of(tmp_path / name, "data.train")


def test_endings_mean_the_same_in_capitals_and_packed(tmp_path: Path) -> None:
    (tmp_path / "ROWS.JSON").write_text(json.dumps(TASKS))
    (tmp_path / "rows.json.gz").write_bytes(gzip.compress(json.dumps(TASKS).encode()))
    (tmp_path / "ROWS.JSONL.GZ").write_bytes(gzip.compress(lines(TASKS).encode()))
    for file in tmp_path.iterdir():
        assert rows_of(read_rows_of(file, "data.train")) == TASKS


def test_half_a_character_in_a_json_list_is_named_by_its_row(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_text(r'[{"text": "a"}, {"text": "\ud800"}]')
    source = read_rows_of(file, "data.train")
    with pytest.raises(RowErrors, match="half of a character") as caught:
        parse_sft_rows(source.data, source=source.name)
    assert caught.value.errors[0].line == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("dataset_dict.json", "{", "dataset_dict.json is not JSON"),
        ("dataset_dict.json", "[]", "splits: found nothing"),
        ("dataset_dict.json", '{"splits": 5}', "splits: found the number 5"),
        ("dataset_dict.json", '{"splits": [5]}', "splits: found a list of 1"),
        ("state.json", "{}", "_data_files: found nothing"),
        ("state.json", '{"_data_files": ["x"]}', "_data_files: found a list of 1"),
        ("state.json", '{"_data_files": [{}]}', "_data_files: expected a filename in each"),
    ],
)
def test_saved_data_set_that_is_spoilt_is_named(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataFileError, match=message):
        read_rows_of(tmp_path, "data.train")


def test_split_of_a_single_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("{}")
    with pytest.raises(DataFileError, match=r"names the split 'test', but .* is one file"):
        read_rows_of(tmp_path / "rows.jsonl", "data.eval", "test")


def test_absent_package_is_said_with_the_command_that_installs_it(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['datasets'] = None\n"
        "from pathlib import Path; from runspec.datafiles import read_rows_of\n"
        f"read_rows_of(Path({str(tmp_path / 'rows.parquet')!r}), 'data.train')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "rows.parquet is read with the package datasets, which is not installed" in done.stderr
    assert "pip install datasets" in done.stderr


@pytest.fixture(scope="module")
def datasets() -> Any:
    found = pytest.importorskip("datasets")
    found.disable_progress_bars()
    return found


Writer = Callable[[Any, list[Any], Path], None]


def saved(datasets: Any, rows: list[Any], folder: Path) -> None:
    datasets.Dataset.from_list(rows).save_to_disk(str(folder), num_shards=2)


def parquet(datasets: Any, rows: list[Any], folder: Path) -> None:
    (folder / "data").mkdir(parents=True)
    middle = len(rows) // 2
    for index, part in enumerate((rows[:middle], rows[middle:])):
        datasets.Dataset.from_list(part).to_parquet(
            str(folder / "data" / f"train-{index:05}-of-00002.parquet")
        )


def jsonl(datasets: Any, rows: list[Any], folder: Path) -> None:
    folder.mkdir()
    middle = len(rows) // 2
    (folder / "train-0.jsonl").write_text(lines(rows[:middle]))
    (folder / "train-1.jsonl").write_text(lines(rows[middle:]))


@pytest.mark.parametrize("write", [saved, parquet, jsonl])
def test_rows_of_a_folder_are_those_that_were_put_in_and_known_by_file_and_row(
    datasets: Any, tmp_path: Path, write: Writer
) -> None:
    rows: list[dict[str, Any]] = [dict(row) for row in TASKS]
    rows[4] = {"prompt": [{"role": "assistant", "content": "no question"}], "answer": 5}
    write(datasets, rows, tmp_path / "set")
    source = read_rows_of(tmp_path / "set", "data.train")
    assert rows_of(source) == rows
    with pytest.raises(RowErrors) as caught:
        parse_tasks(source.data, source=source.name, required={"answer"})
    said = str(source.placed(caught.value))
    second = source.files[1]
    assert Path(second).is_relative_to(tmp_path / "set")
    assert said == f"{second}:2: prompt[0].role: found assistant, expected the last to be user"


def test_splits_are_taken_by_field_by_name_and_never_by_chance(
    datasets: Any, tmp_path: Path
) -> None:
    parts = {"train": TASKS[:3], "validation": TASKS[3:5], "extra": TASKS[5:]}
    made = {name: datasets.Dataset.from_list(rows) for name, rows in parts.items()}
    datasets.DatasetDict(made).save_to_disk(str(tmp_path / "saved"))
    for name, part in made.items():
        (tmp_path / "plain").mkdir(exist_ok=True)
        part.to_parquet(str(tmp_path / "plain" / f"{name}.parquet"))
    for folder in (tmp_path / "saved", tmp_path / "plain"):
        assert rows_of(read_rows_of(folder, "data.train")) == parts["train"]
        assert rows_of(read_rows_of(folder, "data.eval")) == parts["validation"]
        with pytest.raises(DataFileError, match=r"names the split 'tset', but .* has train, valid"):
            read_rows_of(folder, "data.eval", "tset")
    assert rows_of(read_rows_of(tmp_path / "saved", "data.eval", "extra")) == parts["extra"]
    odd = datasets.DatasetDict({"a": made["train"], "b": made["train"]})
    odd.save_to_disk(str(tmp_path / "odd"))
    with pytest.raises(DataFileError, match=r"has the splits a, b; say which by data.train_split"):
        read_rows_of(tmp_path / "odd", "data.train")


def test_csv_has_a_column_per_field(datasets: Any, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('prompt,answer,unit\n"What, now?",3,\nWhen?,4,s\n')
    source = read_rows_of(tmp_path / "rows.csv", "data.train")
    tasks = parse_tasks(source.data, source=source.name, required={"answer"})
    assert [task.messages[0].text for task in tasks] == ["What, now?", "When?"]
    assert [task.reference for task in tasks] == [{"answer": 3}, {"answer": 4, "unit": "s"}]


def test_keys_that_a_table_fills_up_with_nothing_are_no_part_of_messages(
    datasets: Any, tmp_path: Path
) -> None:
    def calling(name: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        call = {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}
        return [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "5"},
            {"role": "assistant", "content": "It is 5."},
        ]

    asked = [{"role": "user", "content": "x"}]
    rows = [
        {"prompt": asked, "completion": calling("add", {"a": 1, "b": 2})},
        {"prompt": asked, "completion": calling("look", {"query": "x"})},
    ]
    datasets.Dataset.from_list(rows).to_parquet(str(tmp_path / "rows.parquet"))
    source = read_rows_of(tmp_path / "rows.parquet", "data.train")
    read = parse_sft_rows(source.data, source=source.name)
    calls = [row.messages[1].tool_calls[0].arguments_json for row in read]
    assert [json.loads(call) for call in calls] == [{"a": 1, "b": 2}, {"query": "x"}]
    assert [row.num_given for row in read] == [1, 1]


def test_every_preference_shape_of_a_table_is_the_same_comparison(
    datasets: Any, tmp_path: Path
) -> None:
    asked, good, bad = (
        {"role": role, "content": text}
        for role, text in (("user", "x"), ("assistant", "a"), ("assistant", "b"))
    )
    shapes = [
        {"prompt": "x", "chosen": "a", "rejected": "b"},
        {"prompt": [asked], "chosen": [good], "rejected": [bad]},
        {"chosen": [asked, good], "rejected": [asked, bad]},
    ]
    for index, shape in enumerate(shapes):
        datasets.Dataset.from_list([shape]).save_to_disk(str(tmp_path / str(index)))
        source = read_rows_of(tmp_path / str(index), "data.train")
        (row,) = parse_preferences(source.data, source=source.name)
        assert (row.prompt[0].text, row.chosen[0].text, row.rejected[0].text) == ("x", "a", "b")


def test_what_json_cannot_hold_is_named_and_times_are_texts(datasets: Any, tmp_path: Path) -> None:
    moment = datetime.datetime(2026, 1, 2, 3)
    rows = [{"prompt": "x", "at": moment}, {"prompt": "y", "at": moment}]
    datasets.Dataset.from_list(rows).to_parquet(str(tmp_path / "times.parquet"))
    source = read_rows_of(tmp_path / "times.parquet", "data.train")
    assert rows_of(source)[0]["at"] == "2026-01-02T03:00:00"
    raw = [{"prompt": "x", "picture": None}, {"prompt": "y", "picture": b"abc"}]
    datasets.Dataset.from_list(raw).to_parquet(str(tmp_path / "raw.parquet"))
    with pytest.raises(RowErrors) as caught:
        read_rows_of(tmp_path / "raw.parquet", "data.train")
    where = tmp_path / "raw.parquet"
    assert str(caught.value) == (
        f"{where}:2: picture: found a bytes, expected what JSON can hold; remove the column"
    )


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow", "rows.csv"])
def test_file_that_cannot_be_read_says_why_once(
    datasets: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    (tmp_path / name).write_bytes(b'PAR1,but\n1,2,3\n"not really')
    logger = logging.getLogger("datasets")
    logger.addHandler(caplog.handler)
    try:
        with pytest.raises(DataFileError, match=f"{name} cannot be read as"):
            read_rows_of(tmp_path / name, "data.train")
    finally:
        logger.removeHandler(caplog.handler)
    assert caplog.messages == []
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataFileError, match="nothing holds no data set"):
        read_rows_of(tmp_path / "nothing", "data.train")


def test_name_is_a_name_and_never_a_pattern(datasets: Any, tmp_path: Path) -> None:
    (tmp_path / "rows1.csv").write_text("prompt\nanother file\n")
    (tmp_path / "rows[1].csv").write_text("prompt\nthis one\n")
    source = read_rows_of(tmp_path / "rows[1].csv", "data.train")
    assert rows_of(source) == [{"prompt": "this one"}]
    (tmp_path / "set[1]").mkdir()
    (tmp_path / "set[1]" / "train.jsonl").write_text(lines(TASKS))
    with pytest.raises(DataFileError, match="for a pattern; rename the folder"):
        read_rows_of(tmp_path / "set[1]", "data.train")


def test_what_pandas_leaves_empty_is_nothing(datasets: Any, tmp_path: Path) -> None:
    rows = [{"prompt": "x", "level": float("nan"), "parts": [1.0, float("nan")]}]
    datasets.Dataset.from_list(rows).to_parquet(str(tmp_path / "rows.parquet"))
    source = read_rows_of(tmp_path / "rows.parquet", "data.train")
    assert rows_of(source) == [{"prompt": "x", "level": None, "parts": [1.0, None]}]
