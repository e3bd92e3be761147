#!/bin/bash
# ci.sh runs the suites of test/shards, summarizes them and counts their tests.
#
#   ci.sh run SHARD…   run these shards; "auto" is the tier 3 shard of this commit
#   ci.sh full         run every shard that has not passed on this commit yet
#   ci.sh table        print each shard's last pass, as a Markdown table
#
# It installs what the suites need. A suite runs even if one before it failed, and none is
# repeated. The exit status is 0 if all passed. DEADLINE, in seconds, bounds the whole run: a
# suite that is not done by then has failed. The commit of each shard's last pass is kept outside
# the tree, so "full" continues where an interrupted run stopped.
set -eu -o pipefail
cd "$(dirname "$0")/.."

shards=test/shards
state=${XDG_STATE_HOME:-$HOME/.local/state}/kuryr/ci
deadline=${DEADLINE:-86400}
# A pass is recorded for a commit, and only if the tree is that commit.
commit=$(git describe --always --abbrev=12 --exclude='*' --dirty)
results=$(mktemp -d)
failed=0
summary=()
files=()
running=""
build=""

trap 'rm -rf "$results"' EXIT
trap 'interrupted' INT TERM HUP

interrupted() {
  trap - INT TERM HUP
  for pid in $running $build; do kill -TERM "$pid" 2>/dev/null || true; done
  wait
  exit 130
}

# rows prints the rows of the table, of the given shard if there is one.
rows() {
  awk -v shard="${1:-}" '!/^(#|$)/ && (shard == "" || $1 == shard)' "$shards"
}

names() {
  rows | awk '!seen[$1]++ { print $1 }'
}

# pick chooses a tier 3 shard by the commit.
pick() {
  local all
  mapfile -t all < <(names | grep -v '^tier')
  echo "${all[$((16#$(git rev-parse HEAD | cut -c1-7) % ${#all[@]}))]}"
}

# room makes place where the disk is nearly full: Go trims its cache of builds by days only. The
# suites need about 10 GB.
room() {
  local cache
  free() { df --output=avail -B1G "$1" | tail -1 | tr -d ' '; }
  cache=$(go env GOCACHE)
  mkdir -p "$cache"
  if [ "$(free "$cache")" -lt 15 ]; then
    echo "ci.sh: $(free "$cache") GB are free; deleting what Go's cache has not used for two hours"
    find "$cache" -type f -mmin +120 -delete
  fi
  echo "$(free "$cache") GB are free for Go's cache, $(free "${TMPDIR:-/tmp}") GB for temporary files"
}

# prepare installs packages, and starts to build Kubernetes for the shards that need it. That
# takes ten minutes of one core and is cached outside the tree.
prepare() {
  room
  suite prepare packages "hack/deps.sh build e2e cni kurma neutron openstack kubernetes upstream firewalls"
  for name; do rows "$name"; done | grep -q kubernetes || return 0
  { hack/kubernetes.sh && hack/kubernetes.sh upstream; } </dev/null >/dev/null 2>&1 &
  build=$!
}

# Suites that write no numbers. Each counts as one test.
plain=" packages lint demo fuzz "

# suite SHARD NAME COMMAND runs a command and reads its numbers, "passed failed skipped", from the
# file NAME in RESULTS.
suite() {
  local shard=$1 name=$2 command=$3 rc=0 start=$SECONDS left=$((deadline - SECONDS)) outcome=ok
  local numbers=$results/$shard/$name counted=$results/counted/$shard/$name
  mkdir -p "$results/$shard" "$results/counted/$shard"
  echo "=== $shard: $name (after $start s)"
  if [ $left -gt 0 ]; then
    RESULTS=$results/$shard timeout --kill-after=30 $left bash -c "$command" </dev/null &
    running=$!
    wait "$running" || rc=$?
    running=""
  else
    rc=124
  fi
  case $rc in
    0) ;;
    124 | 137) outcome="FAILED: time limit of $deadline s" && sleep 2 ;; # for the report's last lines
    *) outcome=FAILED ;;
  esac
  if [ -s "$numbers" ]; then
    cp "$numbers" "$counted"
  else
    [[ $plain == *" $name "* ]] || [ $rc != 0 ] || { rc=1 && outcome="FAILED: no numbers"; }
    echo $((rc == 0)) 0 0 >"$counted"
  fi
  # What failed may be a step around the tests.
  [ $rc = 0 ] || awk '{ print $1, ($2 > 0 ? $2 : 1), $3 }' "$counted" >"$counted.new"
  [ $rc = 0 ] || mv "$counted.new" "$counted"
  files+=("$counted")
  summary+=("$(printf '%-18s %-22s %5d s  %5d passed, %d failed, %d skipped  %s' \
    "$shard" "$name" $((SECONDS - start)) $(<"$counted") "$outcome")")
  [ $rc = 0 ] || failed=1
  return $((rc != 0))
}

# shard NAME runs the suites of a shard and records its pass.
shard() {
  local name=$1 ok=1 start=$SECONDS suite command
  rm -f "$state/$name"
  while read -r -u 3 _ suite _ command; do
    suite "$name" "$suite" "$command" || ok=
  done 3< <(rows "$name")
  [[ $name == tier* ]] || [ $((SECONDS - start)) -le 720 ] || summary+=("$name took more than 12 minutes")
  [[ $commit != *-dirty ]] || ok=
  [ -n "$ok" ] && [ "$(git describe --always --abbrev=12 --exclude='*' --dirty)" = "$commit" ] || return 0
  mkdir -p "$state"
  echo "$commit $(date -u +%F) $((SECONDS - start)) $(cat "$results/counted/$name/"* | awk '{ p += $1; s += $3 } END { print p, s }')" \
    >"$state/.$name" && mv "$state/.$name" "$state/$name"
}

# passed reports whether a shard has passed on this commit.
passed() {
  [ -e "$state/$1" ] && [ "$(cut -d' ' -f1 "$state/$1")" = "$commit" ]
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
  local name missing=""
  for name in $(names); do
    [ -d "$results/$name" ] || passed "$name" || missing="$missing $name"
  done
  echo "=== summary (after $SECONDS s)"
  printf '%s\n' "${summary[@]}"
  [ -z "$missing" ] || echo "not run on this commit:$missing"
  find "$results" -name '*.failed' -exec cat {} +
  cat "${files[@]}" | awk '{ p += $1; f += $2; s += $3 } END { print p " passed, " f " failed, " s " skipped" }'
  exit $failed
}

chosen=()
case "${1:-} $#" in
  "run "[2-9] | "run "[1-9][0-9])
    for name in "${@:2}"; do
      [ "$name" != auto ] || name=$(pick)
      [ -n "$(rows "$name")" ] || { echo "ci.sh: $shards has no shard $name" >&2; exit 2; }
      chosen+=("$name")
    done
    ;;
  "full 1")
    for name in $(names); do
      if passed "$name"; then echo "=== $name has passed on this commit"; else chosen+=("$name"); fi
    done
    [ ${#chosen[@]} -gt 0 ] || exit 0
    ;;
  "table 1") table; exit ;;
  *) sed -n '4,6s/^# *//p' "$0" >&2; exit 2 ;;
esac
prepare "${chosen[@]}" || true
for name in "${chosen[@]}"; do shard "$name"; done
finish
