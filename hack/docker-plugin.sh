#!/bin/bash
# docker-plugin.sh [DIR [KURYR]]: makes the folder (bin/docker-plugin) that `docker plugin create`
# takes: config.json and rootfs/, with KURYR (bin/kuryr) and both kinds of Debian's iptables, with
# which Kuryr adds firewall exceptions. It replaces the folder when the new one is complete.
set -eu -o pipefail
cd "$(dirname "$0")/.."
to=${1:-bin/docker-plugin}
kuryr=${2:-bin/kuryr}
[ -x "$kuryr" ] || { echo "docker-plugin.sh: $kuryr is missing: make build" >&2; exit 1; }
command -v xtables-nft-multi >/dev/null || [ -x /usr/sbin/xtables-nft-multi ] || hack/deps.sh plugin

mkdir -p "$(dirname "$to")"
new=$(mktemp -d "$to.XXXXXX")
trap 'rm -rf "$new"' EXIT
root=$new/rootfs

# These must be there: Docker mounts on them and makes none itself.
mkdir -p "$root"/{usr/bin,usr/sbin,etc/kuryr,tmp,proc,sys,dev,propagated,host/run,var/lib/kuryr,run/docker/plugins}
chmod 755 "$new" "$root"
touch "$root/host/mountinfo" "$root"/etc/{hosts,resolv.conf}
ln -s ../run "$root/var/run"
# Docker names a container's namespace by the host's path.
ln -s ../../host/run/docker/netns "$root/run/docker/netns"

# Not kuryr-kubernetes: a plugin of Docker's serves no cluster.
install -m 755 "$kuryr" "$root/usr/bin/kuryr"

# copy FILE…: with its path, and every library it is linked with.
copy() {
  local file library
  for file in "$@"; do
    [ -e "$root$file" ] || install -D -m 755 "$file" "$root$file"
    ldd "$file" | grep -oE '/[^ ]+' | while read -r library; do
      [ -e "$root$library" ] || install -D -m 755 "$library" "$root$library"
    done
  done
}

sbin=/usr/sbin
copy $sbin/xtables-nft-multi $sbin/xtables-legacy-multi
for program in iptables ip6tables; do
  for variant in nft legacy; do
    for suffix in "" -restore -save; do
      ln -s xtables-$variant-multi "$root$sbin/$program-$variant$suffix"
    done
  done
done
# What iptables knows of matches and targets; a rule of the host's that it cannot show would hide the whole table from us.
extensions=$(dirname "$(ldd $sbin/xtables-nft-multi | grep -oE '/[^ ]*libxtables[^ ]*')" | sed 's,^/lib/,/usr/lib/,')/xtables
[ -d "$extensions" ] || { echo "docker-plugin.sh: no folder $extensions with iptables' extensions" >&2; exit 1; }
copy "$extensions"/lib{xt,ipt,ip6t}_*.so

sed "s/@VERSION@/$("$kuryr" version | sed -n '1s/^kuryr \([A-Za-z0-9.+_-]*\).*/\1/p')/" deploy/docker-plugin/config.json >"$new/config.json"
rm -rf "$to"
mv "$new" "$to"
trap - EXIT
echo "$to: $(du -sh "$to" | cut -f1); next: docker plugin create kuryr $to"
