#!/bin/bash
# ci.sh runs the suites of test/shards, summarizes them and counts their tests.
#
#   ci.sh run SHARD…   run these shards; "auto" is the tier 3 shard of this commit
#   ci.sh full         run every shard that has not passed on this commit yet
#   ci.sh table        print each shard's last pass, as a Markdown table
#
# A suite runs even if one before it failed, and none is repeated. The exit status is 0 if all
# passed. DEADLINE, in seconds, bounds the whole run: a suite that is not done by then has failed.
# The commit of each shard's last pass is kept outside the tree, so "full" can be interrupted.
set -eu -o pipefail
cd "$(dirname "$0")/.."
exec </dev/null

shards=test/shards
state=${XDG_STATE_HOME:-$HOME/.local/state}/kuryr/ci
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
deadline=${DEADLINE:-86400}
summary=()
files=()

# rows prints the rows of the table, of the given shard if there is one.
rows() {
  awk -v shard="${1:-}" '!/^(#|$)/ && (shard == "" || $1 == shard)' "$shards"
}

names() {
  rows | awk '!seen[$1]++ { print $1 }'
}

tier3() {
  names | grep -v '^tier'
}

# pick chooses a tier 3 shard by the commit.
pick() {
  local all
  mapfile -t all < <(tier3)
  echo "${all[$((16#$(git rev-parse HEAD | cut -c1-7) % ${#all[@]}))]}"
}

# commit is HEAD, marked if the tree differs from it.
commit() {
  git describe --always --abbrev=12 --exclude='*' --dirty
}

# build_cluster starts building Kubernetes, which takes ten minutes of one core and is cached
# outside the tree. The suites that need it wait for it.
build_cluster() {
  [ -z "$(for s in "$@"; do rows "$s"; done | grep -E 'kubernetes|services')" ] ||
    { hack/kubernetes.sh && hack/kubernetes.sh upstream; } >/dev/null 2>&1 &
}

# suite SHARD NAME COMMAND: a command without numbers of its own counts as one test.
suite() {
  local shard=$1 name=$2 command=$3 rc=0 start=$SECONDS file=$results/$1/$2 outcome=ok left
  left=$((deadline - SECONDS))
  mkdir -p "$results/$shard"
  echo "=== $shard: $name (after $start s)"
  if [ $left -le 0 ]; then
    echo "=== $name: the time limit of $deadline s is over"
    rc=124
  else
    RESULTS=$results/$shard timeout --kill-after=30 $left bash -c "$command" || rc=$?
  fi
  [ -s "$file" ] || { if [ $rc = 0 ]; then echo 1 0 0; else echo 0 1 0; fi; } >"$file"
  # The tests passed, but a step around them failed.
  if [ $rc != 0 ] && [ "$(cut -d' ' -f2 "$file")" = 0 ]; then
    awk '{ print $1, 1, $3 }' "$file" >"$file.new" && mv "$file.new" "$file"
  fi
  [ "$(cut -d' ' -f2 "$file")" = 0 ] || { outcome=FAILED && [ $rc != 124 ] || outcome="FAILED: time limit"; }
  files+=("$file")
  summary+=("$(printf '%-18s %-20s %5d s  %s passed, %s failed, %s skipped  %s' "$shard" "$name" \
    $((SECONDS - start)) $(<"$file") "$outcome")")
  [ "$outcome" = ok ]
}

# shard NAME runs the suites of a shard and records its pass.
shard() {
  local name=$1 ok=1 start=$SECONDS suite command
  while read -r _ suite _ command; do
    suite "$name" "$suite" "$command" || ok=
  done < <(rows "$name")
  [ -n "$ok" ] || return 0
  mkdir -p "$state"
  echo "$(commit) $(date -u +%F) $((SECONDS - start)) $(cat "$results/$name"/* | awk '{ p += $1; s += $3 } END { print p, s }')" \
    >"$state/$name"
}

# passed reports whether a shard has passed on this commit.
passed() {
  [ -e "$state/$1" ] && [ "$(cut -d' ' -f1 "$state/$1")" = "$(commit)" ]
}

table() {
  local name at day seconds tests skipped
  echo "| shard | suites | last pass | on | seconds | tests | skipped |"
  echo "| --- | --- | --- | --- | --- | --- | --- |"
  for name in $(names); do
    at=- day=- seconds=- tests=- skipped=-
    [ ! -e "$state/$name" ] || read -r at day seconds tests skipped <"$state/$name"
    echo "| $name | $(rows "$name" | awk '{ printf "%s%s", sep, $2; sep = ", " }') | $at | $day | $seconds | $tests | $skipped |"
  done
}

# finish prints the summary and, as its last line, the number of tests.
finish() {
  local name missing="" rc=0
  for name in $(names); do
    [ -d "$results/$name" ] || passed "$name" || missing="$missing $name"
  done
  echo "=== summary (after $SECONDS s)"
  printf '%s\n' "${summary[@]}"
  [ -z "$missing" ] || echo "not run on this commit:$missing"
  go build -C test -o ../bin/count ./count
  bin/count -sum "${files[@]}" 2>/dev/null || rc=$?
  exit $rc
}

case ${1:-} in
  run)
    shift
    chosen=()
    for name in "$@"; do
      [ "$name" != auto ] || name=$(pick)
      [ -n "$(rows "$name")" ] || { echo "ci.sh: $shards has no shard $name" >&2; exit 2; }
      chosen+=("$name")
    done
    build_cluster "${chosen[@]}"
    for name in "${chosen[@]}"; do shard "$name"; done
    finish
    ;;
  full)
    chosen=()
    for name in $(names); do
      if passed "$name"; then echo "=== $name has passed on this commit"; else chosen+=("$name"); fi
    done
    [ ${#chosen[@]} -gt 0 ] || exit 0
    build_cluster "${chosen[@]}"
    for name in "${chosen[@]}"; do shard "$name"; done
    finish
    ;;
  table) table ;;
  *) sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
