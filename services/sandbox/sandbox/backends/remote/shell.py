"""What is run inside a remote sandbox on our own behalf: small scripts for sh and the GNU tools, and what they print.

Every image that such services build on has these tools; `PREPARE` says which one is missing. A workload can replace
them in its own sandbox, and then it deceives itself: what they print is read as any hostile text is.
"""

import re
from dataclasses import dataclass

from sandbox.types import FileEntry, FileKind

SHELL = "/bin/sh"
TOOL_ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
MARK = "EXEC_MARK"
"""Variable by which everything that a command started is found."""

MISSING, WRONG_KIND, TOO_LARGE, NO_TOOL = 44, 45, 46, 43
"""Exit codes of the scripts."""

PREPARE = f"""
for tool in cat chmod find grep head mkdir mv readlink rm sleep stat tail tar; do
  command -v $tool >/dev/null || {{ echo $tool; exit {NO_TOOL}; }}
done
mkdir -p "$1" /tmp && chmod 1777 /tmp && grep -s '^oom_kill ' /proc/vmstat
exit 0
"""
"""$1: the working folder. Prints how often the kernel has killed for want of memory."""

RUN = """
folder=$1 input=$2
shift 2
cd "$folder" || exit 126
unset OLDPWD
if [ -n "$input" ]; then exec <"$input"; rm -f "$input"; else exec </dev/null; fi
exec "$@"
"""
"""$1: working folder, $2: file with the input or empty, then the command."""

WATCH = """
while read -r line <"/proc/$1/stat"; do
  rest=${line##*) }
  case $rest in [ZX]*) echo "$rest"; exit 0;; esac
  sleep 0.05
done 2>/dev/null
"""
"""$1: a process. Prints the last fields of its status once it has ended and nobody has asked for it."""

KILL = f"""
left=2
while [ "$left" -gt 0 ]; do
  left=$((left - 1))
  for folder in /proc/[0-9]*; do
    while read -r line || [ -n "$line" ]; do
      case $line in *"{MARK}=$1"*) kill -9 "${{folder#/proc/}}" && left=2; break;; esac
    done <"$folder/environ"
  done 2>/dev/null
done
"""
"""$1: a mark. Kills every process that bears it, until two rounds in a row found none: one that is just becoming
another program shows no mark for a moment. It starts nothing itself: in a sandbox that is full of processes it could
not."""

OOM_KILLS = "grep -s '^oom_kill ' /proc/vmstat"

_ENTRY = "'%f\\0%y\\0%s\\0%m\\0%T@\\0%l\\0'"
STAT = f"""
[ -e "$1" ] || [ -L "$1" ] || exit {MISSING}
find "$1" -maxdepth 0 -printf {_ENTRY}
"""
LIST = f"""
[ -e "$1" ] || exit {MISSING}
[ -d "$1" ] || exit {WRONG_KIND}
find "$1/" -mindepth 1 -maxdepth 1 -printf {_ENTRY}
"""
READ = f"""
case $1 in /proc/*|/sys/*) exit {WRONG_KIND};; esac
[ -e "$1" ] || exit {MISSING}
file=$(readlink -f -- "$1"; echo x)
file=${{file%?x}}
case $file in /proc/*|/sys/*) exit {MISSING};; esac
[ -f "$file" ] || exit {WRONG_KIND}
size=$(stat -c %s -- "$file") || exit {MISSING}
echo "$size" >&2
count=$3
if [ "$count" = 0 ]; then
  [ $((size - $2)) -le "$4" ] || exit {TOO_LARGE}
  count=$4
fi
tail -c "+$(($2 + 1))" -- "$file" | head -c "$count"
"""
"""$1: path, $2: offset, $3: how many bytes or 0 for all, $4: the most. Prints the size to stderr."""

WRITE = f"""
if [ -L "$2" ]; then
  [ -e "$2" ] || {{ rm -f "$1"; exit {MISSING}; }}
  [ -f "$2" ] || {{ rm -f "$1"; exit {WRONG_KIND}; }}
  cat "$1" >"$2"; code=$?
  rm -f "$1"
  exit $code
fi
if [ -e "$2" ] && [ ! -f "$2" ]; then rm -f "$1"; exit {WRONG_KIND}; fi
folder=${{2%/*}}
mkdir -p "${{folder:-/}}" && chmod "$3" "$1" && mv -f "$1" "$2" && exit 0
rm -f "$1"
exit 1
"""
"""$1: what was uploaded, $2: where it goes, $3: its mode."""

UNPACK = """
mkdir -p "$2" && tar -xf "$1" -C "$2" --no-same-owner
code=$?
rm -f "$1"
exit $code
"""
"""$1: the archive that was uploaded, $2: the folder."""

PACK = f"""
[ -e "$1" ] || exit {MISSING}
if [ -d "$1" ]; then
  cd "$1/" && find . -mindepth 1 -maxdepth 1 -printf '%P\\0' |
    tar -cf - --format=posix --sort=name --null --verbatim-files-from -T -
else
  folder=${{1%/*}}
  cd "${{folder:-/}}" && tar -cf - --format=posix -- "${{1##*/}}"
fi
"""

_KINDS = {"f": FileKind.FILE, "d": FileKind.FOLDER, "l": FileKind.LINK}
_SIGNALS = {
    "hangup": 1,
    "interrupt": 2,
    "quit": 3,
    "illegal instruction": 4,
    "trace/breakpoint trap": 5,
    "aborted": 6,
    "bus error": 7,
    "floating point exception": 8,
    "killed": 9,
    "user defined signal 1": 10,
    "segmentation fault": 11,
    "user defined signal 2": 12,
    "broken pipe": 13,
    "alarm clock": 14,
    "terminated": 15,
    "CPU time limit exceeded": 24,
    "file size limit exceeded": 25,
    "bad system call": 31,
}
"""Names that the daemon's language gives them."""

_EXIT_CODE_FIELD = 49
"""Of what `WATCH` prints: the wait status, field 52 of /proc/PID/stat, counted from field 3."""


@dataclass(frozen=True, slots=True)
class WaitStatus:
    """How a process ended."""

    exit_code: int
    signal: int


def status_of_end(exited: bool, exit_code: int, status: str) -> WaitStatus:
    """Return what the daemon's own words say."""
    if exited:
        return WaitStatus(exit_code, 0)
    name = re.sub(r" \(core dumped\)$", "", status.removeprefix("signal: "))
    number = name.removeprefix("signal ")
    if name not in _SIGNALS and number.isdigit() and number.isascii():
        return WaitStatus(0, int(number))
    return WaitStatus(0, _SIGNALS.get(name, 9))


def status_of_watch(printed: bytes) -> WaitStatus | None:
    """Return what `WATCH` saw; None if the process is simply not there any more."""
    fields = printed.split()
    if len(fields) <= _EXIT_CODE_FIELD or not fields[_EXIT_CODE_FIELD].isdigit():
        return None
    number = int(fields[_EXIT_CODE_FIELD])
    signal = number & 0x7F
    return WaitStatus(0, signal) if signal else WaitStatus((number >> 8) & 0xFF, 0)


def oom_kills_of(printed: bytes) -> int:
    """Return the count of `OOM_KILLS`; 0 where the kernel does not say."""
    match = re.search(rb"^oom_kill (\d{1,18})$", printed, re.MULTILINE)
    return int(match.group(1)) if match else 0


def entries_of(printed: bytes) -> list[FileEntry]:
    """Return what `STAT` and `LIST` print, in order of name.

    Raises:
        ValueError: it is not what they print.
    """
    fields = printed.split(b"\0")
    if len(fields) % 6 != 1 or fields[-1]:
        raise ValueError(f"{len(fields)} fields")
    found = []
    for start in range(0, len(fields) - 1, 6):
        name, kind, size, mode, time, target = fields[start : start + 6]
        found.append(
            FileEntry(
                name=name.decode(errors="replace"),
                kind=_KINDS.get(kind.decode(errors="replace"), FileKind.OTHER),
                size_bytes=int(size),
                mode=int(mode, 8),
                modify_time=float(time),
                link_target=target.decode(errors="replace"),
            )
        )
    return sorted(found, key=lambda entry: entry.name)
