#!/usr/bin/env bash
# Makes .venv-trl for the benchmark of the learner: TRL over the packages of .venv, which it sees
# through a path file.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=.venv-trl
[ -x "$venv/bin/python" ] || .venv/bin/python -m venv "$venv"
site=$("$venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')
.venv/bin/python -c 'import site; print(site.getsitepackages()[0])' >"$site/hone-base.pth"
"$venv/bin/python" -m pip install -q --no-deps -r tools/constraints/trl.txt
