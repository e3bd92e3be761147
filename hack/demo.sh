#!/bin/bash
# demo.sh: two Docker containers talking on a Kuryr network. It uses the Docker engine that answers on the default socket, or
# else starts one on a private host (namespaces of its own). demo.sh --clean removes what it made.
set -eu -o pipefail
cd "$(dirname "$0")/.."
top=$PWD
mode=${1:-}
private=${KURYR_DEMO_DIR:-/tmp/kuryr-demo}
privatehost=$top/bin/privatehost
kuryr=$top/bin/kuryr
pidfile=/run/kuryr-demo.pid
out=198.51.100.2 # the neighbour of a private host

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
show() { printf '  $ %s\n' "$*"; "$@" 2>&1 | sed 's/^/  /'; }

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

# The show itself; the engine and Kuryr are up.
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
      [ -x "$privatehost" ] || go build -o "$privatehost" ./test/e2e/cmd/privatehost
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
    exit
    ;;
  "") ;;
  *) echo "usage: demo.sh [--clean]" >&2; exit 2 ;;
esac

say "Installing what is missing (Debian packages) and building Kuryr, side by side."
hack/deps.sh demo &
deps=$!
make -s build
CGO_ENABLED=0 go build -o "$privatehost" ./test/e2e/cmd/privatehost
wait $deps

if docker info >/dev/null 2>&1; then
  say "A Docker engine is running here: using it."
  out=$(ip route show default | sed -n 's/.* via \([0-9.]*\).*/\1/p' | head -n 1)
  if ! "$kuryr" status >/dev/null 2>&1; then
    say "Starting Kuryr (kuryr up)."
    setsid "$kuryr" up >/var/log/kuryr-demo.log 2>&1 </dev/null &
    echo $! >$pidfile
    for _ in $(seq 100); do
      "$kuryr" status >/dev/null 2>&1 && break
      kill -0 "$(cat $pidfile)" 2>/dev/null || { tail -n 20 /var/log/kuryr-demo.log >&2; exit 1; }
      sleep 0.1
    done
  fi
  run
else
  say "No Docker engine is running here: starting one, and Kuryr, on a private host (namespaces of its own)."
  [ ! -e "$private/kept" ] || "$privatehost" -stop "$private"
  "$privatehost" -keep -dir "$private" -kuryr "$kuryr" -- "$top/hack/demo.sh" --inside
  say "More in this host: bin/privatehost -in $private -- docker ps"
fi
say "Done. \`make demo-clean\` removes what the demo made."
