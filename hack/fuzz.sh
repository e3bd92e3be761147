#!/bin/bash
# fuzz.sh [TIME]: runs every fuzz target of the tree for TIME (10s; or 2000x, so many inputs), one after the other. A package's targets are built once.
set -eu -o pipefail
cd "$(dirname "$0")/.."
time=${1:-10s}
ran=0
failed=0
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
found=$(go env GOCACHE)/fuzz

while read -r folder; do
  if ! go test -c -fuzz . -o "$built/fuzz.test" "./$folder"; then
    failed=$((failed + 1))
    continue
  fi
  for target in $(grep -hEo '^func Fuzz[A-Za-z0-9_]+' "$folder"/*_test.go | sed 's/func //' | sort); do
    echo "fuzz: $folder $target for $time"
    (cd "$folder" && "$built/fuzz.test" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "$time" -test.fuzzcachedir "$found/$folder") || failed=$((failed + 1))
    ran=$((ran + 1))
  done
done < <(grep -rlE --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sed 's,^\./,,' | sort -u)
echo "fuzz: $ran targets run, $failed failed"
[ "$failed" = 0 ] && [ "$ran" -gt 0 ]
