// Package ferry is what the executable kuryr-cni does where the node's daemon runs: it carries the runtime's call to the daemon as it is, and the daemon's answer to the runtime.
// All else the program beside it does, in its place.
//
// It owns the plain form of a call and of its answer, which both sides read without JSON. A runtime starts it for each container, and each package that a program is made of costs it
// time before its first line: so it must import nothing but syscall, and understand nothing of what it carries.
package ferry
