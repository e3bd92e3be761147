package neutronapi_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// sequence are the requests that a tool sends for its resources, in order: "METHOD path body", with "404" before it where the answer is to be that, and "name=place" behind
// a "→" for what later ones need of the answer.
type sequence struct {
	tool     string
	admin    bool // asked by an administrator, else by a member of a project
	requests []string
}

// Terraform's and Ansible's resources find every request there that they send, and what they ask for is shown as it was asked for: from another answer both would conclude
// that there is something to change.
func TestToolsFindTheirRequests(t *testing.T) {
	t.Parallel()
	for name, sequences := range map[string][]sequence{"terraform": terraform, "ansible": ansible} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := serveStore(t)
			outside := id(root.make("/networks", "network", object{"name": "outside", "router:external": true}))
			outer := id(root.make("/subnets", "subnet", object{"network_id": outside, "ip_version": 4, "cidr": "198.51.100.0/24", "enable_dhcp": false}))
			saved := map[string]string{"outside": outside, "outer": outer}
			for _, s := range sequences {
				who := root.of("ours/member")
				if s.admin {
					who = root.of("ours/admin")
				}
				for _, request := range s.requests {
					follow(t, who, s.tool, request, saved)
				}
			}
		})
	}
}

// follow sends one request of a sequence and looks at its answer.
func follow(t *testing.T, who *api, tool, request string, saved map[string]string) {
	t.Helper()
	request, save, _ := strings.Cut(request, " → ")
	for name, value := range saved {
		request = strings.ReplaceAll(request, "${"+name+"}", value)
	}
	request, absent := strings.CutPrefix(request, "404 ")
	parts := strings.SplitN(request, " ", 3)
	var body object
	var sent any
	if len(parts) == 3 {
		if err := json.Unmarshal([]byte(parts[2]), &body); err != nil {
			t.Fatalf("%s: %v", request, err)
		}
		sent = body
	}
	status, answer := who.ask(parts[0], parts[1], sent)
	if absent && status != 404 || !absent && (status < 200 || status > 299) {
		t.Errorf("%s: %s: %d %v", tool, request, status, answer)
	}
	for member, asked := range body {
		shown, single := answer[member].(object)
		wanted, also := asked.(object)
		if !single || !also || strings.HasSuffix(parts[1], "_extraroutes") { // which answers with all routes
			continue
		}
		for name, value := range wanted {
			chosen := value == nil && strings.HasPrefix(parts[1], "/lbaas/") // a null has Octavia choose
			if now, there := shown[name]; there && !chosen && !alike(value, now) {
				t.Errorf("%s: %s: %s is shown as %v", tool, request, name, now)
			}
		}
	}
	if name, place, ok := strings.Cut(save, "="); ok {
		var at any = answer
		for part := range strings.SplitSeq(place, ".") {
			if list, is := at.([]any); is && len(list) > 0 {
				at = list[0]
			}
			inside, _ := at.(object)
			at = inside[part]
		}
		saved[name], _ = at.(string)
		if saved[name] == "" {
			t.Errorf("%s: %s: no %s in %v", tool, request, place, answer)
		}
	}
}

// alike compares what was asked for with what is shown: an object shows more than was asked for, and a list is a set.
func alike(asked, shown any) bool {
	switch asked := asked.(type) {
	case object:
		now, ok := shown.(object)
		for name, value := range asked {
			ok = ok && alike(value, now[name])
		}
		return ok
	case []any:
		now, ok := shown.([]any)
		return ok && len(now) == len(asked) && !slices.ContainsFunc(asked, func(a any) bool {
			return !slices.ContainsFunc(now, func(n any) bool { return alike(a, n) })
		})
	}
	return fmt.Sprint(asked) == fmt.Sprint(shown)
}
