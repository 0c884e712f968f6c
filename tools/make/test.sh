#!/usr/bin/env bash
# Everything CI runs: static checks, then all tests. The closing line counts the tests of all parts.
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=.venv/bin
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
step() { printf '\n== %s\n' "$*"; }

step "format, lint, types, imports, contracts"
$bin/ruff format --check -q .
$bin/ruff check -q .
$bin/buf lint protos
$bin/buf format -d --exit-code protos >/dev/null
$bin/buf breaking protos --against protos/baseline.binpb
make -s types imports

failed=0
part() { # name, interpreter, pytest arguments
	step "tests: $1"
	"$2" -m pytest -q --junitxml="$out/$1.xml" --durations=5 "${@:3}" || failed=1
}
step "tests: unit"
tools/make/unit.sh "$out" || failed=1
[ "${CI:-}" != true ] || tools/make/setup_engines.sh
# Two lanes of about the same length; what mostly waits begins beside what computes.
models=(services/learner services/rollout tools)
mapfile -t others < <(printf '%s\n' libs/* services/* | grep -vxF "$(printf '%s\n' services/sandbox "${models[@]}")")
(
	part e2e $bin/python tests/e2e
	part others $bin/python "${others[@]}" -m "slow or model"
	part models $bin/python "${models[@]}" -m "slow or model"
	part vllm .venv-vllm/bin/python services/rollout -m vllm
	exit "$failed"
) >"$out/second.log" 2>&1 &
part sandboxes $bin/python services/sandbox -m slow
part together $bin/python tests --ignore tests/e2e
wait $! || failed=1
cat "$out/second.log"

exec $bin/python tools/make/count.py "$failed" "$out"/*.xml
