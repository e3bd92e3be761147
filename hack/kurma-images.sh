#!/bin/bash
# kurma-images.sh [DIR]: writes the two plugin images of Kurma's networks to DIR (bin/images), each as an App Container Image (NAME.aci) and as an OCI archive (NAME.tar):
#   kuryr-netplugin  attaches pods to an SDN's networks; Kuryr's static programs alone
#   cni-netplugin    runs CNI plugins, which are Debian's (containernetworking-plugins), and the iptables that they call
# They need no engine, and are the same for the same programs.
set -eu -o pipefail
cd "$(dirname "$0")/.."
to=${1:-bin/images}
version=$(bin/kuryr version | sed -n '1s/^kuryr \([A-Za-z0-9.+_-]*\).*/\1/p')
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$to"
CGO_ENABLED=0 go build -o "$root/kurma-image" ./hack/kurma-image

# into ROOT PROGRAM…: copies programs of this machine to where they are, with the libraries that they are linked with.
into() {
  local root=$1 file library
  shift
  for file; do
    install -D -m 755 "$file" "$root$file"
    { ldd "$file" 2>/dev/null || true; } | grep -oE '/[^ ]+' | while read -r library; do install -D -m 755 "$library" "$root$library"; done
  done
}

# pack NAME MOUNTS EXEC
pack() {
  local file
  for file in "$to/$1.aci" "$to/$1.tar"; do
    "$root/kurma-image" -to "$file" -name "kuryr.org/$1" -version "${version//[^A-Za-z0-9._-]/-}" -arch "$(go env GOARCH)" -exec "$3" -mounts "$2" "$root/$1"
    echo "$file: $(du -h "$file" | cut -f1)"
  done
}

for program in bin/kuryr bin/kuryr-netplugin bin/cni-netplugin; do
  [ -x "$program" ] || { echo "kurma-images.sh: $program is missing: make build" >&2; exit 1; }
done
[ -x /usr/lib/cni/bridge ] || { echo "kurma-images.sh: /usr/lib/cni has no plugins: apt-get install containernetworking-plugins" >&2; exit 1; }

r=$root/kuryr-netplugin
install -d "$r"/{usr/bin,opt/network,etc,run,var/lib,tmp,proc,sys,dev}
ln -s ../run "$r/var/run" # where Open vSwitch is said to be
install -m 755 bin/kuryr "$r/usr/bin/"
install -m 755 bin/kuryr-netplugin "$r/opt/network/add"
ln -s add "$r/opt/network/del"
pack kuryr-netplugin /run/kuryr,/etc/kuryr,/etc/openstack,/run/openvswitch,/var/lib/kuryr "/usr/bin/kuryr kurma plugin"

r=$root/cni-netplugin
install -d "$r"/{usr/bin,usr/sbin,opt/network,etc,run,var/lib/cni,tmp,proc,sys,dev}
install -m 755 bin/cni-netplugin "$r/usr/bin/"
for verb in add del; do ln -s /usr/bin/cni-netplugin "$r/opt/network/$verb"; done
into "$r" /usr/lib/cni/*
if [ -x /usr/sbin/xtables-nft-multi ]; then # masquerade and published ports
  into "$r" /usr/sbin/xtables-nft-multi
  for name in iptables ip6tables iptables-save ip6tables-save iptables-restore ip6tables-restore; do ln -s xtables-nft-multi "$r/usr/sbin/$name"; done
  modules=$(dirname "$(dpkg -L iptables | grep -m1 '/xtables/libxt_comment.so')")
  into "$r" "$modules"/libxt_*.so "$modules"/libipt_*.so "$modules"/libip6t_*.so
fi
pack cni-netplugin /var/lib/cni "/usr/bin/cni-netplugin"
