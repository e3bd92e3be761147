#!/bin/bash
# demo.sh: two Docker containers talking on a Kuryr network. It uses the Docker engine on
# the default socket, or starts one on a private host (namespaces of its own). It installs
# and builds what is missing and reports the time of each stage. demo.sh --clean removes
# what it made; Debian packages, Go's caches and the programs stay.
set -eu -o pipefail
cd "$(dirname "$0")/.."
top=$PWD
mode=${1:-}
private=${KURYR_DEMO_DIR:-/tmp/kuryr-demo}
privatehost=$top/bin/privatehost
kuryr=$top/bin/kuryr
pidfile=/run/kuryr-demo.pid
logs=$top/bin/demo # the output of each stage
out=198.51.100.2 # the neighbour of a private host

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
show() { printf '  $ %s\n' "$*"; "$@" 2>&1 | sed 's/^/  /'; }

# Listing the packages downloads the modules that contain them, and no others.
download() {
  { go list -deps ./cmd/kuryr; go list -C test -deps ./e2e/cmd/privatehost; } >"$logs/packages"
}

install() { exec hack/deps.sh demo; }

# -v names each package that is compiled. A go command that is killed leaves files in
# GOTMPDIR.
build() { GOTMPDIR=$logs GOFLAGS="${GOFLAGS:-} -v" exec hack/build.sh kuryr privatehost; }

start() {
  if [ ! "$engine" ]; then
    [ ! -e "$private/kept" ] || "$privatehost" -stop "$private"
    exec "$privatehost" -keep -dir "$private" -kuryr "$kuryr" -- true
  fi
  ! "$kuryr" status >/dev/null 2>&1 || return 0
  setsid "$kuryr" up >"$logs/kuryr" 2>&1 </dev/null &
  echo $! >$pidfile
  for _ in $(seq 600); do
    ! "$kuryr" status >/dev/null 2>&1 || return 0
    kill -0 "$(cat $pidfile)" 2>/dev/null || break
    sleep 0.1
  done
  echo "kuryr up is not ready:"
  tail -n 20 "$logs/kuryr"
  return 1
}

declare -A began took pids
stages="download install build start"

# begin STAGE…: starts the stages, each in a process group of its own.
begin() {
  local stage
  for stage; do
    began[$stage]=$SECONDS
    set -m
    "$stage" >"$logs/$stage" 2>&1 </dev/null &
    set +m
    pids[$stage]=$!
  done
}

# finish waits for the running stages and prints a line for each every 4 seconds. It exits
# when one fails.
finish() {
  local stage rc last=$SECONDS due
  while [ ${#pids[@]} -gt 0 ]; do
    sleep 0.2
    due=$((SECONDS - last >= 4))
    [ $due = 0 ] || last=$SECONDS
    for stage in "${!pids[@]}"; do
      took[$stage]=$((SECONDS - ${began[$stage]}))
      if kill -0 "${pids[$stage]}" 2>/dev/null; then
        [ $due = 0 ] || echo "$stage: ${took[$stage]} s$(progress "$stage")"
        continue
      fi
      rc=0
      wait "${pids[$stage]}" || rc=$?
      unset "pids[$stage]"
      if [ $rc != 0 ]; then
        echo "$stage: failed after ${took[$stage]} s:" >&2
        output "$stage" >&2
        exit 1
      fi
      echo "$stage: done in ${took[$stage]} s"
    done
  done
}

progress() {
  case $1 in
    download) echo ", $(grep -c '^go: downloading' "$logs/download") modules" ;;
    build)
      local built total
      built=$(grep -cxFf "$logs/packages" "$logs/build" || true)
      total=$(sort -u "$logs/packages" | wc -l)
      echo ", $built of at most $total packages"
      ;;
  esac
}

# output prints what a stage wrote, without the names of packages.
output() { grep -vxFf "$logs/packages" "$logs/$1" || true; }

# stop ends the running stages after a signal or a failure, and shows what they wrote. It
# waits for apt, which finishes what it has begun to install; a second Ctrl-C ends the
# wait.
stop() {
  local stage
  trap - INT
  trap '' TERM HUP
  for stage in "${!pids[@]}"; do
    echo "$stage: stopping" >&2
    kill -TERM -- "-${pids[$stage]}" 2>/dev/null || true
  done
  for stage in "${!pids[@]}"; do
    wait "${pids[$stage]}" || true
    echo "$stage: stopped after $((SECONDS - ${began[$stage]})) s:" >&2
    output "$stage" >&2
  done
  rm -rf "$logs"/go-build*
}

clean() {
  docker rm -f demo-a demo-b >/dev/null 2>&1 || true
  docker network rm demo >/dev/null 2>&1 || true
  docker rmi -f kuryr-demo >/dev/null 2>&1 || true
}

import() {
  local root
  root=$(mktemp -d)
  mkdir -p "$root/bin"
  cp "$(command -v busybox)" "$root/bin/busybox"
  for a in $(busybox --list); do [ "$a" = busybox ] || ln -s busybox "$root/bin/$a"; done
  tar -C "$root" -c . | docker import -c 'ENV PATH=/bin' -c 'CMD ["/bin/sh"]' - kuryr-demo >/dev/null
  rm -rf "$root"
}

# run is the show itself. Docker and Kuryr are running.
run() {
  clean
  import
  say "A network: Docker asks Kuryr for it, Kuryr makes a bridge in a router namespace of the network's own."
  show docker network create -d kuryr --ipam-driver kuryr --subnet 10.10.0.0/24 demo
  say "Two containers on it; each becomes a port with an address and a MAC."
  for c in a b; do
    show docker run -d --name demo-$c --network demo --stop-signal KILL kuryr-demo sleep 1000000
  done
  local a b
  a=$(docker inspect -f '{{.NetworkSettings.Networks.demo.IPAddress}}' demo-a)
  b=$(docker inspect -f '{{.NetworkSettings.Networks.demo.IPAddress}}' demo-b)
  say "They talk to each other, both ways."
  show docker exec demo-a ping -c 2 "$b"
  show docker exec demo-b ping -c 2 "$a"
  if [ -n "$out" ]; then
    say "They reach the outside; there they have the host's address (NAT)."
    show docker exec demo-a ping -c 2 "$out"
  else
    say "The host has no default route, so there is no outside to show."
  fi
  say "What Kuryr knows of it:"
  show "$kuryr" topology
}

case $mode in
  --inside) run; exit ;;
  --clean)
    if [ -e "$private/kept" ]; then
      [ -x "$privatehost" ] || hack/build.sh privatehost
      "$privatehost" -stop "$private"
      echo "The private host is gone, and all that was in it."
    elif docker info >/dev/null 2>&1; then
      clean
      if [ -e $pidfile ]; then # the demo started Kuryr, so it ends it
        kill "$(cat $pidfile)" 2>/dev/null || true
        "$kuryr" down --purge || true
        rm -f $pidfile
      fi
      echo "The demo's containers and network are gone."
    else
      echo "There is nothing to clean up."
    fi
    rm -rf "$logs"
    exit
    ;;
  "") ;;
  *) echo "usage: demo.sh [--clean]" >&2; exit 2 ;;
esac

command -v go >/dev/null || { echo "demo.sh: Go is missing, see https://go.dev/doc/install" >&2; exit 1; }
mkdir -p "$logs"
: >"$logs/packages"
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

say "Downloading Go modules, and installing missing Debian packages."
begin download install
finish
say "Building Kuryr."
begin build
finish
engine=$(docker info -f '{{.ServerVersion}}' 2>/dev/null || true)
if [ "$engine" ]; then
  say "Docker $engine is running here. Starting Kuryr beside it."
  out=$(ip route show default | sed -n 's/.* via \([0-9.]*\).*/\1/p' | head -n 1)
else
  say "No Docker engine is running here. Starting one, and Kuryr, in namespaces of their own."
fi
begin start
finish
if [ "$engine" ]; then
  run
else
  "$privatehost" -in "$private" -- "$top/hack/demo.sh" --inside || { tail -n 20 "$private"/*.log >&2; exit 1; }
  say "More in this host: bin/privatehost -in $private -- docker ps"
fi
took[start]=$((SECONDS - ${began[start]}))
say "Done. \`make demo-clean\` removes what the demo made."
times=
for stage in $stages; do times="$times, $stage ${took[$stage]} s"; done
echo "ready in $SECONDS s: ${times#, }"
