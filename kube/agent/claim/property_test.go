//go:build linux

package claim

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kuryr/kuryr/kube/agent"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
)

// TestAnyOrder draws histories of pods, containers, ports, deaths and outages. Whatever happens, no port is two containers', none that a container has is lost or given up, and
// in the end the API says what the journal says.
func TestAnyOrder(t *testing.T) {
	// The fake API server is slow. -rapid.checks, where it is given, counts.
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		must(t, f.Value.Set("25"))
	}
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t)
		defer func() { w.kill() }()
		w.begun()
		w.api.mu.Lock()
		w.api.faults = rapid.SampledFrom([]int{0, 0, 30}).Draw(rt, "faults")
		w.api.mu.Unlock()
		has := map[string]sdn.ID{} // by container, what ADD has answered and no DEL taken away
		of := map[string]agent.Attachment{}
		pods := map[string]string{} // UIDs by name
		var ports []int
		made, ran := 0, 0
		some := func(label string, from []string) string {
			slices.Sort(from)
			if len(from) == 0 {
				rt.Skip("nothing there")
			}
			return rapid.SampledFrom(from).Draw(rt, label)
		}
		begun := func() bool {
			select {
			case <-w.ready:
				return true
			default:
				return false
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"port": func(rt *rapid.T) {
				made++
				ports = append(ports, made)
				must(t, w.api.Create(t.Context(), aPort(made)))
			},
			"give up a port": func(rt *rapid.T) {
				if len(ports) == 0 {
					rt.Skip("nothing there")
				}
				must(t, client.IgnoreNotFound(w.api.Delete(t.Context(), aPort(rapid.SampledFrom(ports).Draw(rt, "port")))))
			},
			"raven deletes": func(*rapid.T) {
				for i, n := range slices.Backward(ports) {
					p := w.api.port(t, portName(n))
					if p.DeletionTimestamp != nil && labelOf(p) == v1.PortDeleting {
						for c, id := range has {
							if string(id) == p.Name {
								rt.Fatalf("port %s is given up under the container %s", id, c)
							}
						}
						w.api.remove(t, p)
						ports = slices.Delete(ports, i, i+1)
					}
				}
			},
			"pod": func(rt *rapid.T) {
				ran++
				name := fmt.Sprint("p", ran)
				pods[name] = "u" + name
				must(t, w.api.Create(t.Context(), aPod(name, pods[name])))
			},
			"ADD": func(rt *rapid.T) {
				pod := some("pod", slices.Collect(maps.Keys(pods)))
				ran++
				a := ask(fmt.Sprint("c", ran), pod, pods[pod])
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
				defer cancel()
				got, err := w.Claim(ctx, a)
				if err == nil {
					has[a.Container], of[a.Container] = got.Port.ID, a
				} else if !sdn.IsExhausted(err) && !sdn.IsNotFound(err) && !sdn.IsUnavailable(err) &&
					!errors.Is(err, context.DeadlineExceeded) {
					rt.Fatalf("ADD: %v", err)
				}
			},
			"ADD again": func(rt *rapid.T) {
				c := some("container", slices.Collect(maps.Keys(has)))
				got, err := w.Claim(t.Context(), of[c])
				if err != nil || got.Port.ID != has[c] {
					rt.Fatalf("%s has %s, then %s, error %v", c, has[c], got.Port.ID, err)
				}
			},
			"DEL": func(rt *rapid.T) {
				c := some("container", slices.Collect(maps.Keys(has)))
				must(t, w.Release(t.Context(), of[c]))
				delete(has, c)
			},
			"DEL of others": func(rt *rapid.T) {
				c := some("container", slices.Collect(maps.Keys(has)))
				stale := of[c]
				stale.Pod = &agent.Pod{Namespace: namespace, Name: stale.Pod.Name, UID: "before"}
				must(t, w.Release(t.Context(), stale))
			},
			"pod goes": func(rt *rapid.T) {
				name := some("pod", slices.Collect(maps.Keys(pods)))
				for c, a := range of { // the runtime takes away first
					if _, there := has[c]; there && a.Pod.Name == name {
						must(t, w.Release(t.Context(), a))
						delete(has, c)
					}
				}
				w.api.remove(t, aPod(name, pods[name]))
				delete(pods, name)
			},
			"kill":   func(*rapid.T) { w.restart() },
			"outage": func(rt *rapid.T) { w.api.leave(rapid.Bool().Draw(rt, "away")) },
			"wait":   func(*rapid.T) { w.api.leave(false); w.begun() },
			"": func(rt *rapid.T) {
				seen := map[sdn.ID]string{}
				for c, id := range has {
					got, err := w.Find(t.Context(), of[c])
					if err != nil || got.Port.ID != id {
						rt.Fatalf("%s had %s and has %s, error %v", c, id, got.Port.ID, err)
					}
					if other := seen[id]; other != "" {
						rt.Fatalf("%s and %s have %s", c, other, id)
					}
					seen[id] = c
				}
				if all := w.attachments(); begun() && len(all) != len(has) {
					rt.Fatalf("%d attachments, want %d", len(all), len(has))
				}
			},
		})
		w.api.leave(false)
		w.begun()
		for _, n := range ports {
			p, container := w.api.port(t, portName(n)), holder(w, portName(n))
			switch {
			case container != "":
				w.says(p.Name, v1.PortBound, container)
			case p.DeletionTimestamp != nil:
				w.says(p.Name, v1.PortDeleting, "")
			default:
				w.says(p.Name, v1.PortAvailable, "")
			}
		}
		w.settled(len(has))
		for name, uid := range pods {
			eventually(t, "the annotation", func() bool {
				w.mu.Lock()
				defer w.mu.Unlock()
				want := w.index.annotationOf(&pod{uid: aPod(name, uid).UID})
				return w.api.pod(t, name).Annotations[v1.AnnotationVIF] == want
			})
		}
	})
}
