"""Makes ratings of files of labels: which column is an item, which a rater, which a label.

Wide files have a row per item and a column per rater; in long files each row is one label of one rater. Files of judges
have an item and a label in each row; they join by the item's id.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from grader.agreement.labels import MAX_LABELS, label_of
from grader.agreement.ratings import Rating, Ratings, ratings_of
from hone_cli.errors import USAGE, CliError
from hone_cli.labelfiles import Faults, LabelFile, LabelRow
from runspec.problems import nearest
from servicekit.errors import InvalidArgument

ID_NAMES = ("id", "item", "item_id", "idx", "task_id")
"""Columns taken for the item's id where none is named."""
_MANY_LABELS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the files are laid out."""

    id: tuple[str, ...] = ()
    """Columns that name the item together; by default the first of ID_NAMES that is there."""
    raters: tuple[str, ...] = ()
    """Raters to compare, in a wide file columns; by default all, in a wide file all that are neither id nor ignored."""
    ignore: tuple[str, ...] = ()
    long: bool = False
    rater_column: str = ""
    """Of a long file; by default `rater`, and where there is none the file or the label's place among its item's."""
    label_column: str = "label"
    """Of a long file."""
    missing: tuple[str, ...] = ()
    """Words that stand for a missing label, besides nothing and NaN."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Labels to read as others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeFile:
    """Labels of one judge that lie in a file of their own."""

    file: LabelFile
    column: str
    """The label's column; empty where it is the only one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """All labels of all files."""

    ratings: Ratings
    notes: tuple[str, ...]
    """What was taken for granted."""


def gather(
    files: Sequence[LabelFile],
    layout: Layout,
    *,
    judge_files: Sequence[JudgeFile] = (),
    judges: Sequence[str] = (),
) -> Gathered:
    """Reads every label of the files.

    Args:
        files: with the labels of people, and of judges that have a column there.
        layout: what the columns are.
        judge_files: of further judges, a file each.
        judges: raters of the files that are no people.

    Raises:
        CliError: rows or columns that do not fit; names file and line.
    """
    reader = _Reader(layout, judges)
    columns = list(dict.fromkeys(name for file in files for name in file.columns))
    ids = reader.id_columns(columns, files[0].path)
    if layout.long:
        reader.read_long(files, ids)
    else:
        reader.read_wide(files, ids, columns)
    reader.faults.raise_if_any()
    for judge in judge_files:
        reader.read_judge(judge, ids)
    reader.faults.raise_if_any()
    everyone = (*judges, *(judge.file.path.stem for judge in judge_files))
    try:
        ratings = ratings_of(reader.found, everyone)
    except InvalidArgument as error:
        raise CliError(error.message, USAGE) from error
    return Gathered(ratings=ratings, notes=tuple(reader.notes))


class _Reader:
    """Turns rows into single labels and notes what does not fit."""

    def __init__(self, layout: Layout, judges: Sequence[str]) -> None:
        self._layout = layout
        self._named = dict.fromkeys((*layout.raters, *judges) if layout.raters else ())
        try:
            self._missing = {label_of(word) for word in layout.missing}
            self._aliases = {
                label_of(word): label_of(meant) for word, meant in layout.aliases.items()
            }
        except ValueError as error:
            raise CliError(f"words for missing or other labels: {error}", USAGE) from error
        self.faults = Faults()
        self.notes: list[str] = []
        self.found: list[Rating] = []

    def id_columns(self, columns: Sequence[str], path: Path) -> tuple[str, ...]:
        """Returns the columns that name an item; none where its row does."""
        if self._layout.id:
            self._known(self._layout.id, columns, path)
            return self._layout.id
        return tuple(name for name in ID_NAMES if name in columns and name not in self._named)[:1]

    def read_wide(
        self, files: Sequence[LabelFile], ids: tuple[str, ...], columns: Sequence[str]
    ) -> None:
        """Reads a label per row and rater."""
        named = self._named
        if not named and {"rater", "label"} <= set(columns):
            self.faults.add(
                files[0].path,
                "has columns rater and label: if a row is one label add --long, else name --raters",
            )
            return
        self._known([*named, *self._layout.ignore], columns, files[0].path)
        others = (*ids, *self._layout.ignore)
        raters = named or dict.fromkeys(name for name in columns if name not in others)
        for rater in raters:
            start = len(self.found)
            for file in files:
                if rater not in file.columns:
                    continue
                for row in file.rows:
                    hint = "" if named else f"; {_ignore_hint(rater)}"
                    if not self._add(row, self._item(row, ids), rater, rater, hint) and hint:
                        break
            if not named:
                self._check_rater(rater, self.found[start:], files[0].path)
        if not named:
            self._note_strangers(list(raters))

    def read_long(self, files: Sequence[LabelFile], ids: tuple[str, ...]) -> None:
        """Reads a label per row."""
        layout = self._layout
        if not ids:
            known = ", ".join(files[0].columns)
            self.faults.add(
                files[0].path, f"has no column of items; name it with --id (has {known})"
            )
            return
        for file in files:
            wanted = (*ids, layout.label_column, *filter(None, (layout.rater_column,)))
            if not self._known(wanted, file.columns, file.path):
                continue
            column = layout.rater_column or ("rater" if "rater" in file.columns else "")
            if not column and len(files) == 1:
                self._read_anonymous(file, ids)
                continue
            for row in file.rows:
                rater = _text(row.values.get(column)) if column else file.path.stem
                if not rater:
                    self.faults.add(
                        row.place, f"{column}: found nothing, expected the rater's name"
                    )
                elif not self._named or rater in self._named:
                    self._add(row, self._item(row, ids), rater, layout.label_column)
        raters = dict.fromkeys(row.rater for row in self.found)
        self._known(list(self._named), list(raters), files[0].path, "label of rater")

    def read_judge(self, judge: JudgeFile, ids: tuple[str, ...]) -> None:
        """Reads the labels of a judge for the items that people labelled."""
        file, name = judge.file, judge.file.path.stem
        if not ids:
            self.faults.add(file.path, "joins by the item's id; name its column with --id")
            return
        if any(row.rater == name for row in self.found):
            self.faults.add(file.path, f"another rater is called {name!r} too; rename the file")
            return
        others = [column for column in file.columns if column not in (*ids, *self._layout.ignore)]
        column = judge.column or (others[0] if len(others) == 1 else "label")
        if column not in file.columns:
            known = ", ".join(others) or "none"
            self.faults.add(
                file.path, f"which column is the label? Write {file.path}:COLUMN (has {known})"
            )
            return
        if not self._known(ids, file.columns, file.path):
            return
        items = {row.item for row in self.found}
        known_rows = [row for row in file.rows if self._item(row, ids) in items]
        if not known_rows:
            self.faults.add(
                file.path, f"has no item in common with the labels, by {', '.join(ids)}"
            )
        elif len(known_rows) < len(file.rows):
            strangers = len(file.rows) - len(known_rows)
            self.notes.append(
                f"{file.path}: {strangers} rows are of items that nobody else labelled"
            )
        for row in known_rows:
            self._add(row, self._item(row, ids), name, column)

    def _read_anonymous(self, file: LabelFile, ids: tuple[str, ...]) -> None:
        counts: dict[str, int] = {}
        for row in file.rows:
            item = self._item(row, ids)
            counts[item] = counts.get(item, 0) + 1
            self._add(row, item, f"rater {counts[item]}", self._layout.label_column)
        self.notes.append(
            f"{file.path}: has no column of raters, so they are numbered by their place within an item; "
            "unless the order is that of people, read the figures of the group, not of pairs"
        )

    def _add(self, row: LabelRow, item: str, rater: str, column: str, hint: str = "") -> bool:
        try:
            label = label_of(row.values.get(column))
        except ValueError as error:
            self.faults.add(row.place, f"{column}: {error}{hint}")
            return False
        label = self._aliases.get(label, label)
        if label in self._missing:
            label = None
        self.found.append(Rating(item=item, rater=rater, label=label, place=row.place))
        return True

    def _item(self, row: LabelRow, ids: tuple[str, ...]) -> str:
        if not ids:
            return row.place
        parts = []
        for name in ids:
            value = row.values.get(name)
            if not isinstance(value, str | int) or value == "":
                self.faults.add(
                    row.place, f"{name}: found no id, expected a text or a whole number"
                )
            parts.append(str(value))
        return "\x1f".join(parts)

    def _known(
        self, names: Sequence[str], columns: Sequence[str], path: Path, what: str = "column"
    ) -> bool:
        unknown = [name for name in names if name not in columns]
        for name in unknown:
            meant = nearest(name, columns)
            hint = f"did you mean {meant}?" if meant else f"it has {', '.join(columns) or 'none'}"
            self.faults.add(path, f"has no {what} {name!r}; {hint}")
        return not unknown

    def _check_rater(self, rater: str, given: Sequence[Rating], path: Path) -> None:
        labels = {row.label for row in given if row.label is not None}
        if len(labels) > MAX_LABELS or len(labels) > max(_MANY_LABELS, len(given) / 2):
            self.faults.add(
                path,
                f"{rater}: found {len(labels)} different labels in {len(given)} rows. {_ignore_hint(rater)}",
            )

    def _note_strangers(self, raters: Sequence[str]) -> None:
        labels: dict[str, set[object]] = {rater: set() for rater in raters}
        for row in self.found:
            labels[row.rater].add(row.label)
        for rater, said in labels.items():
            others = set().union(*(labels[other] for other in raters if other != rater))
            if len(raters) > 1 and not (said - {None}) & others:
                self.notes.append(f"no other rater uses a label of {rater}. {_ignore_hint(rater)}")


def _text(value: object) -> str:
    return "" if value is None else str(value).strip()


def _ignore_hint(rater: str) -> str:
    return f"if {rater!r} is no rater, leave it out with --ignore, or name the raters with --raters"
