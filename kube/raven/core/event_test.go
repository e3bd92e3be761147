package core

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
)

// sink is told what a recorder writes.
type sink chan string

func (s sink) Create(_ context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	s <- "new: " + e.Note
	return e, nil
}

func (s sink) Update(_ context.Context, e *eventsv1.Event) (*eventsv1.Event, error) { return e, nil }

func (s sink) Patch(_ context.Context, e *eventsv1.Event, _ []byte) (*eventsv1.Event, error) {
	s <- fmt.Sprintf("%d: %s", e.Series.Count, e.Note)
	return e, nil
}

// Kubernetes' recorder writes each text of an object, and counts those that differ only in
// the id or port of a request, or in a count.
func TestEachTextIsTold(t *testing.T) {
	told := make(sink, 10)
	broadcaster := events.NewBroadcaster(told)
	t.Cleanup(broadcaster.Shutdown)
	if err := broadcaster.StartRecordingToSinkWithContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := &Core{Events: broadcaster.NewRecorder(runtime.NewScheme(), "kuryr")}
	about := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "www"},
	}
	written := map[string]bool{}
	heard := func() string {
		t.Helper()
		for {
			select {
			case got := <-told:
				// The recorder's first refresh may write a series again.
				if !written[got] || strings.HasPrefix(got, "new: ") {
					written[got] = true
					return got
				}
			case <-time.After(time.Minute):
				t.Fatal("nothing is written")
			}
		}
	}
	for _, one := range [][2]string{
		{"192.0.2.1 is taken (req-1a-2b)", "new: 192.0.2.1 is taken (req-1a-2b)"},
		{"192.0.2.1 is taken (req-3c-4d)", "2: 192.0.2.1 is taken (req-1a-2b)"},
		{"192.0.2.2 is taken (req-5e-6f)", "new: 192.0.2.2 is taken (req-5e-6f)"},
		{"read tcp 192.0.2.9:40001->192.0.2.10:9696: reset", "new: read tcp 192.0.2.9:40001->192.0.2.10:9696: reset"},
		{"read tcp 192.0.2.9:40002->192.0.2.10:9696: reset", "2: read tcp 192.0.2.9:40001->192.0.2.10:9696: reset"},
		{"the maximum is reached: 3 pods wait", "new: the maximum is reached: 3 pods wait"},
		{"the maximum is reached: 12 pods wait", "2: the maximum is reached: 3 pods wait"},
		{"5 more ports are needed", "new: 5 more ports are needed"},
		{"4 more ports are needed", "2: 5 more ports are needed"},
	} {
		r.Warn(about, EventFailed, "LoadBalancer", "%s", one[0])
		if got := heard(); got != one[1] {
			t.Errorf("of %q is written %q, want %q", one[0], got, one[1])
		}
	}
}
