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
part unit $bin/python libs services tools -n 2 -m "not slow and not model"
[ "${CI:-}" != true ] || tools/make/setup_engines.sh
# The sandboxes' tests want one core and mostly wait; the other slow ones compute beside them.
(part slow $bin/python libs services tools -m "slow or model" --ignore services/sandbox; exit "$failed") \
	>"$out/slow.log" 2>&1 &
part sandboxes $bin/python services/sandbox -m slow
wait $! || failed=1
cat "$out/slow.log"
part together $bin/python tests
part vllm .venv-vllm/bin/python services/rollout -m vllm

exec $bin/python tools/make/count.py "$failed" "$out"/*.xml
