#!/bin/bash
# fuzz.sh [TIME]: runs every fuzz target of the tree for TIME (10s; or 2000x, so many inputs), one after the other.
set -eu -o pipefail
cd "$(dirname "$0")/.."
time=${1:-10s}
ran=0
failed=0
while IFS=: read -r file target; do
  echo "fuzz: $(dirname "$file") $target for $time"
  go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "./$(dirname "$file")" || failed=$((failed + 1))
  ran=$((ran + 1))
done < <(grep -rEo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . | sed 's,^\./,,; s/func //' | sort)
echo "fuzz: $ran targets run, $failed failed"
[ "$failed" = 0 ] && [ "$ran" -gt 0 ]
