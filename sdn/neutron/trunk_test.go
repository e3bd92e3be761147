package neutron

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

func TestChooseVLANs(t *testing.T) {
	w := &trunkWire{Subports: []subportWire{{Port: "a", VLAN: 7}}}
	all, missing, err := chooseVLANs(w, []sdn.Subport{{Port: "b"}, {Port: "a", VLAN: 9}, {Port: "c", VLAN: 8}})
	if err != nil || len(missing) != 2 || all[1].VLAN != 7 || all[2].VLAN != 8 || all[0].VLAN == 0 || all[0].VLAN == 7 || all[0].VLAN == 8 {
		t.Errorf("%v, missing %v, %v", all, missing, err)
	}
	if _, _, err := chooseVLANs(w, []sdn.Subport{{Port: "b"}, {Port: "c", VLAN: 7}}); sdn.ReasonOf(err) != sdn.Exists || sdn.FieldOf(err) != "subports[1].vlan" {
		t.Errorf("a VLAN that is another's: %v", err)
	}
	full := &trunkWire{}
	for vlan := 1; vlan < maxVLAN; vlan++ {
		full.Subports = append(full.Subports, subportWire{Port: sdn.ID(fmt.Sprint(vlan)), VLAN: vlan})
	}
	all, _, err = chooseVLANs(full, []sdn.Subport{{Port: "last"}})
	if err != nil || all[0].VLAN != maxVLAN {
		t.Errorf("the last VLAN: %v, %v", all, err)
	}
	if _, _, err = chooseVLANs(full, []sdn.Subport{{Port: "last"}, {Port: "one too many"}}); !sdn.IsExhausted(err) || sdn.ReasonOf(err) != sdn.NoVLANs {
		t.Errorf("one more: %v", err)
	}
}

// A trunk as others change it between this process's look and its change.
type racingTrunk struct {
	subports  []subportWire
	conflicts int // how many additions lose the race for their VLAN
}

func (d *racingTrunk) serve(r *http.Request, body []byte) (int, string) {
	var subports []string
	switch {
	case !strings.Contains(r.URL.Path, "/trunks/t"):
		return 0, ""
	case strings.HasSuffix(r.URL.Path, "/add_subports"):
		asked := string(body)
		if d.conflicts > 0 {
			d.conflicts--
			var port string
			var vlan int
			for _, part := range strings.FieldsFunc(asked, func(r rune) bool { return strings.ContainsRune(`{}[]",:`, r) }) {
				_, _ = fmt.Sscanf(part, "%d", &vlan)
			}
			port = fmt.Sprint("other-", vlan)
			d.subports = append(d.subports, subportWire{Port: sdn.ID(port), VLAN: vlan})
			return http.StatusConflict, neutronError("DuplicateSubPort", fmt.Sprintf("segmentation_type vlan and segmentation_id %d already in use on trunk t.", vlan))
		}
		return http.StatusOK, `{}`
	}
	for _, s := range d.subports {
		subports = append(subports, fmt.Sprintf(`{"port_id": %q, "segmentation_type": "vlan", "segmentation_id": %d}`, s.Port, s.VLAN))
	}
	return http.StatusOK, `{"trunk": {"id": "t", "port_id": "parent", "admin_state_up": true, "sub_ports": [` + strings.Join(subports, ",") + `]}}`
}

func TestAVLANLostToAnotherIsChosenAnew(t *testing.T) {
	d := newPortDouble(100)
	p, _, _ := onPorts(t, d)
	trunk := &racingTrunk{conflicts: 2}
	d.refuse = trunk.serve
	got, err := p.AttachSubports(t.Context(), "t", []sdn.Subport{{Port: "a"}})
	if err != nil || len(got) != 1 || got[0].VLAN == 0 || len(trunk.subports) != 2 {
		t.Fatalf("%v, %v; others took %v", got, err, trunk.subports)
	}
	for _, s := range trunk.subports {
		if s.VLAN == got[0].VLAN {
			t.Errorf("VLAN %d is another's", s.VLAN)
		}
	}
	trunk.conflicts = 1
	if _, err := p.AttachSubports(t.Context(), "t", []sdn.Subport{{Port: "a", VLAN: 4000}}); sdn.ReasonOf(err) != sdn.Exists || sdn.FieldOf(err) != "subports[0].vlan" {
		t.Errorf("a VLAN that was asked for and lost: %v", err)
	}
}

// A trunk is answered with the revision that it has after its tags were written.
func TestTrunkWithTags(t *testing.T) {
	tagged := `{"trunk": {"id": "t", "port_id": "p", "admin_state_up": true, "description": "kuryr/test/t/trunk", "tags": ["a"], "revision_number": 4}}`
	p, _, _ := onScript(t, map[string][]says{
		"GET /trunks":        {{200, `{"trunks": []}`}},
		"POST /trunks":       {{201, `{"trunk": {"id": "t", "port_id": "p", "admin_state_up": true, "description": "kuryr/test/t/trunk", "tags": [], "revision_number": 1}}`}},
		"PUT /trunks/t/tags": {{200, `{"tags": ["a"]}`}},
		"GET /trunks/t":      {{200, tagged}},
	}, "trunk")
	spec := sdn.TrunkSpec{Base: sdn.Base{Key: testKey("trunk"), Tags: []string{"a"}}, Parent: "p"}
	made, err := p.EnsureTrunk(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if now, err := p.Trunk(t.Context(), "t"); err != nil || made.Revision != now.Revision {
		t.Errorf("made it is at revision %d, then at %d, error %v", made.Revision, now.Revision, err)
	}
}
