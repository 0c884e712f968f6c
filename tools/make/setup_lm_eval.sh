#!/usr/bin/env bash
# Makes .venv-lm-eval for the benchmark of answers: lm-eval without its needs, over the packages of .venv, which it sees
# through a path file.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=.venv-lm-eval
[ -x "$venv/bin/python" ] || .venv/bin/python -m venv "$venv"
site=$("$venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')
.venv/bin/python -c 'import site; print(site.getsitepackages()[0])' >"$site/hone-base.pth"
"$venv/bin/python" -m pip install -q --no-deps -r tools/constraints/lm-eval.txt
