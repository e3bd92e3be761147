package core

import (
	"fmt"
	"hash/fnv"
	"regexp"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Reasons of Raven's Events.
const (
	EventFailed   = "KuryrFailed"      // the SDN refuses, or is unavailable
	EventShort    = "KuryrShort"       // fewer ports than are needed
	EventRefused  = "KuryrRefused"     // a request that the namespace does not grant, or an invalid annotation
	EventMade     = "KuryrMade"        // what the owner of an object should know
	EventUnserved = "KuryrNotEnforced" // what Kuryr does not do
)

// Warn writes an Event of a failure. Equal ones are counted in one.
func (r *Core) Warn(about runtime.Object, reason, action, format string, args ...any) {
	r.event(about, corev1.EventTypeWarning, reason, action, fmt.Sprintf(format, args...))
}

// Note writes an Event of something done.
func (r *Core) Note(about runtime.Object, reason, action, format string, args ...any) {
	r.event(about, corev1.EventTypeNormal, reason, action, fmt.Sprintf(format, args...))
}

// fleeting is what differs in the text of one failure each time: ids and source ports of
// requests, and counts.
var fleeting = regexp.MustCompile(`req-[0-9a-f-]+|:[0-9]+->|\b[0-9]+ (more )?(of its |pools of )?(ports|pods)\b`)

// event writes an Event. A recorder counts Events with the same reason and action in the
// first one, and drops the text of the others. So the action has a hash of the text.
func (r *Core) event(about runtime.Object, kind, reason, action, text string) {
	hash := fnv.New32a()
	_, _ = hash.Write(fleeting.ReplaceAll([]byte(text), nil))
	r.Events.Eventf(about, nil, kind, reason, fmt.Sprintf("%s-%08x", action, hash.Sum32()), "%s", text)
}
