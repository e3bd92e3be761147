// Package netplugin is what the plugin image kuryr-netplugin does: it attaches Kurma's pods to the networks of an SDN.
//
// The image's main executable has a Plugin and serves it at a socket inside the container; /opt/network/add and /opt/network/del (package call) hand it what Kurma gave them. So the SDN is
// opened once, and not for each pod.
//
// The package owns the ports with Keys of its kind, one for each pod and interface, and the interfaces that they are plugged as. It keeps nothing itself: who has which port is in the SDN.
// It must not make networks, know which SDN there is, nor know how Kurma runs containers.
package netplugin
