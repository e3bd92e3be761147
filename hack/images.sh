#!/bin/bash
# images.sh [DIR]: writes DIR/kuryr.tar (bin/images/kuryr.tar), the image that everything of Kuryr's in a cluster runs: kuryr, which is the embedded SDN and becomes
# kuryr-kubernetes as Raven and as the nodes' daemon, and the CNI plugin with what that runs where no daemon is, which it copies to a node. It has nothing but Kuryr's static programs, needs no engine, and is the same for the same programs.
# TAG names the image (kuryr/kuryr:VERSION).
set -eu -o pipefail
cd "$(dirname "$0")/.."
. hack/tools/tool.sh
to=${1:-bin/images}
programs=(bin/kuryr bin/kuryr-kubernetes bin/kuryr-vif bin/kuryr-cni bin/kuryr-cni-api)
for program in "${programs[@]}"; do
  [ -x "$program" ] || { echo "images.sh: $program is missing: make build" >&2; exit 1; }
  if readelf -l "$program" 2>/dev/null | grep -q INTERP; then
    echo "images.sh: $program is not static: make build" >&2
    exit 1
  fi
done
image=$(tool image .)
version=$(bin/kuryr version | sed -n '1s/^kuryr \([A-Za-z0-9.+_-]*\).*/\1/p')
tag=${TAG:-kuryr/kuryr:${version//[^A-Za-z0-9._-]/-}}

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
# What volumes are mounted on, so that the image may be read-only. Container runtimes name namespaces under /var/run.
install -d -m 755 "$root"/{usr/bin,usr/libexec/kuryr,etc/kuryr,etc/openstack,etc/cni/net.d,run/kuryr,run/netns,run/openvswitch,var/lib/kuryr,host/bin,host/spec}
install -d -m 1777 "$root/tmp"
ln -s ../run "$root/var/run"
install -m 755 bin/kuryr bin/kuryr-kubernetes "$root/usr/bin/"
install -m 755 bin/kuryr-vif bin/kuryr-cni bin/kuryr-cni-api "$root/usr/libexec/kuryr/"
for type in bridge ovs tap midonet unbound; do ln -s kuryr-vif "$root/usr/libexec/kuryr/$type"; done

mkdir -p "$to"
"$image" -to "$to/kuryr.tar" -tag "$tag" -arch "$(go env GOARCH)" -entrypoint /usr/bin/kuryr -version "$version" "$root"
echo "$to/kuryr.tar: $tag, $(du -h "$to/kuryr.tar" | cut -f1); next: ctr -n k8s.io images import $to/kuryr.tar"
