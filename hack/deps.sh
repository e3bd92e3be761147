#!/bin/bash
# deps.sh [PURPOSE…]: installs the missing Debian packages of each purpose: build, e2e (the
# default), cni, kurma, neutron, agents, openstack, kubernetes, upstream, firewalls, demo, plugin.
# It starts no service. Without root it lists the packages and fails.
set -eu -o pipefail

build="gcc libc6-dev git ca-certificates"
e2e="docker.io busybox-static iptables nftables iputils-ping iproute2 procps tcpdump iperf3 jq strace"
# Runtimes that call CNI plugins, and the plugins that Kuryr's is measured against.
cni="podman containerd runc containernetworking-plugins busybox-static iproute2 iputils-ping nftables iptables"
# Octavia and its driver for OVN, without the packages that set up services.
octavia="python3-octavia python3-ovn-octavia-provider"
# neutron-common and python3-keystone set up no service.
neutron="neutron-common mariadb-server ovn-central ovn-host openvswitch-switch python3-keystone ethtool $octavia"
# Neutron's layer 2 agents, and what they exchange messages by.
agents="neutron-openvswitch-agent neutron-linuxbridge-agent rabbitmq-server"
openstack="python3-openstackclient python3-octaviaclient"
# Runtimes of Kurma's plugins and of its pods, and what the plugins run.
kurma="crun runc podman containernetworking-plugins busybox-static iproute2 iputils-ping nftables iptables"
# What a kubelet runs, and the reference plugins of the control test.
kubernetes="containerd runc conntrack socat ethtool containernetworking-plugins"
# What Kubernetes' own tests run in their pods.
upstream="bash bind9-dnsutils conntrack curl dash iproute2 iputils-ping netcat-openbsd wget"
firewalls="ufw firewalld dbus"
demo="docker.io busybox-static iptables nftables iputils-ping iproute2"

wanted=
for purpose in "${@:-e2e}"; do
  case $purpose in
    build) wanted="$wanted $build" ;;
    e2e) wanted="$wanted $build $e2e docker-compose python3-openstackclient" ;;
    cni) wanted="$wanted $build $cni" ;;
    neutron) wanted="$wanted $build $e2e $neutron" ;;
    kurma) wanted="$wanted $build $kurma" ;;
    agents) wanted="$wanted $build $agents" ;;
    openstack) wanted="$wanted $build $openstack" ;;
    kubernetes) wanted="$wanted $build $e2e $kubernetes" ;;
    upstream) wanted="$wanted $upstream" ;;
    firewalls) wanted="$wanted $firewalls" ;;
    demo) wanted="$wanted $demo" ;;
    plugin) wanted="$wanted iptables" ;;
    *) echo "deps.sh: unknown purpose $purpose (build, e2e, cni, kurma, neutron, agents, openstack, kubernetes, upstream, firewalls, demo, plugin)" >&2; exit 2 ;;
  esac
done

command -v dpkg-query >/dev/null || { echo "deps.sh: not a Debian system; install the like of:$wanted" >&2; exit 1; }
missing=
for p in $wanted; do
  dpkg-query -W -f='${db:Status-Abbrev}' "$p" 2>/dev/null | grep -q '^ii' && continue
  # Another package may provide the program, for example Docker's own docker-ce.
  case $p in
    docker.io) command -v dockerd >/dev/null && command -v docker >/dev/null && continue ;;
    docker-compose) command -v docker-compose >/dev/null && continue ;;
    gcc) command -v gcc >/dev/null && continue ;;
  esac
  missing="$missing $p"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ]; then
  echo "deps.sh: missing packages; as root: apt-get install --no-install-recommends$missing" >&2
  exit 1
fi

echo "deps.sh: installing$missing"
# Otherwise Debian would start Docker in the machine's own network, and change its firewall.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
  printf '#!/bin/sh\nexit 101\n' >$policy
  chmod 755 $policy
  trap 'rm -f $policy' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
apt="apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3"
# shellcheck disable=SC2086
download() { $apt install -y --no-install-recommends --download-only $missing </dev/null >/dev/null; }
download 2>/dev/null || { $apt update </dev/null >/dev/null; download; }
trap '' INT TERM HUP # dpkg would need repair if it were interrupted
# shellcheck disable=SC2086
$apt install -y --no-install-recommends $missing </dev/null >/dev/null
