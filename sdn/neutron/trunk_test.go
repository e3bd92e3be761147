package neutron

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

func TestChooseVLANs(t *testing.T) {
	w := &trunkWire{Subports: []subportWire{vlanSubport("a", 7)}}
	all, missing, err := chooseVLANs(w, []sdn.Subport{{Port: "b"}, {Port: "a", VLAN: 9}, {Port: "c", VLAN: 8}})
	if err != nil || len(missing) != 2 || all[1].VLAN != 7 || all[2].VLAN != 8 || all[0].VLAN == 0 || all[0].VLAN == 7 || all[0].VLAN == 8 {
		t.Errorf("%v, missing %v, %v", all, missing, err)
	}
	if _, _, err := chooseVLANs(w, []sdn.Subport{{Port: "b"}, {Port: "c", VLAN: 7}}); sdn.ReasonOf(err) != sdn.Exists || sdn.FieldOf(err) != "subports[1].vlan" {
		t.Errorf("a VLAN that is another's: %v", err)
	}
	full := &trunkWire{}
	for vlan := 1; vlan < valid.MaxVLAN; vlan++ {
		full.Subports = append(full.Subports, vlanSubport(sdn.ID(fmt.Sprint(vlan)), vlan))
	}
	all, _, err = chooseVLANs(full, []sdn.Subport{{Port: "last"}})
	if err != nil || all[0].VLAN != valid.MaxVLAN {
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
			d.subports = append(d.subports, vlanSubport(sdn.ID(port), vlan))
			return http.StatusConflict, neutronError("DuplicateSubPort", fmt.Sprintf("segmentation_type vlan and segmentation_id %d already in use on trunk t.", vlan))
		}
		return http.StatusOK, `{}`
	}
	for _, s := range d.subports {
		subports = append(subports, fmt.Sprintf(`{"port_id": %q, "segmentation_type": "vlan", "segmentation_id": %d}`, s.PortID, s.SegmentationID))
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
		if s.SegmentationID == got[0].VLAN {
			t.Errorf("VLAN %d is another's", s.SegmentationID)
		}
	}
	trunk.conflicts = 1
	if _, err := p.AttachSubports(t.Context(), "t", []sdn.Subport{{Port: "a", VLAN: 4000}}); sdn.ReasonOf(err) != sdn.Exists || sdn.FieldOf(err) != "subports[0].vlan" {
		t.Errorf("a VLAN that was asked for and lost: %v", err)
	}
}

// heldTrunk is the trunk t as Neutron keeps it: a VLAN is one port's, and a port is in
// one trunk, which none gets into that has a device.
type heldTrunk struct {
	subports []subportWire
	device   string // a port that has one
}

func (d *heldTrunk) serve(r *http.Request, body []byte) (int, string) {
	var asked struct {
		Subports []subportWire `json:"sub_ports"`
	}
	switch {
	case !strings.Contains(r.URL.Path, "/trunks/t"):
		return 0, ""
	case r.Method == http.MethodGet:
		return http.StatusOK, `{"trunk": ` + d.said() + `}`
	}
	if err := json.Unmarshal(body, &asked); err != nil {
		return http.StatusBadRequest, neutronError("BadRequest", err.Error())
	}
	for _, s := range asked.Subports {
		at := slices.IndexFunc(d.subports, func(has subportWire) bool { return has.PortID == s.PortID })
		switch adds := strings.HasSuffix(r.URL.Path, "/add_subports"); {
		case !adds && at < 0:
			return http.StatusNotFound, neutronError("SubPortNotFound", s.PortID)
		case !adds:
			d.subports = slices.Delete(d.subports, at, at+1)
		case s.PortID == d.device:
			return http.StatusConflict, neutronError("PortInUse", "Port already has an attached device d2.")
		case at >= 0:
			return http.StatusConflict, neutronError("TrunkPortInUse", s.PortID)
		case slices.ContainsFunc(d.subports, func(has subportWire) bool { return has.SegmentationID == s.SegmentationID }):
			return http.StatusConflict, neutronError("DuplicateSubPort", fmt.Sprint(s.SegmentationID))
		default:
			d.subports = append(d.subports, s)
		}
	}
	return http.StatusOK, d.said()
}

func (d *heldTrunk) said() string {
	subports, _ := json.Marshal(d.subports)
	return `{"id": "t", "port_id": "parent", "admin_state_up": true, "sub_ports": ` + string(subports) + `}`
}

// A trunk is read before its first change, and after a refusal that says that it is
// another by now.
func TestTrunkIsReadWhereItIsNotKnown(t *testing.T) {
	d := newPortDouble(100)
	p, proxy, _ := onPorts(t, d)
	trunk := &heldTrunk{}
	d.refuse = trunk.serve
	attach := func(port sdn.ID, calls string) int {
		t.Helper()
		proxy.Reset()
		got, err := p.AttachSubports(t.Context(), "t", []sdn.Subport{{Port: port}})
		if err != nil || len(got) != 1 || got[0].VLAN == 0 || !slices.Contains(trunk.subports, vlanSubport(port, got[0].VLAN)) {
			t.Fatalf("%s: %v, %v; the trunk has %v", port, got, err, trunk.subports)
		}
		if made := fmt.Sprint(proxy.Calls()); made != calls {
			t.Errorf("%s: asked %s, want %s", port, made, calls)
		}
		return got[0].VLAN
	}
	attach("a", "[GET trunks PUT trunks]")
	vlan := attach("b", "[PUT trunks]")
	if again := attach("b", "[GET trunks]"); again != vlan {
		t.Errorf("attached again it has VLAN %d, had %d", again, vlan)
	}
	if err := p.DetachSubports(t.Context(), "t", []sdn.ID{"b"}); err != nil {
		t.Fatal(err)
	}
	attach("b", "[PUT trunks]")

	// Another process attaches a port, and takes one off.
	trunk.subports = append(slices.DeleteFunc(trunk.subports, func(s subportWire) bool { return s.PortID == "a" }), vlanSubport("c", 4000))
	if vlan := attach("c", "[PUT trunks GET trunks]"); vlan != 4000 {
		t.Errorf("it has VLAN %d", vlan)
	}
	attach("a", "[PUT trunks]")

	// Another process takes almost all VLANs.
	for vlan := 1; len(trunk.subports) < valid.MaxVLAN-1; vlan++ {
		if !slices.ContainsFunc(trunk.subports, func(s subportWire) bool { return s.SegmentationID == vlan }) {
			trunk.subports = append(trunk.subports, vlanSubport(sdn.ID(fmt.Sprint("other-", vlan)), vlan))
		}
	}
	last, err := p.AttachSubports(t.Context(), "t", []sdn.Subport{{Port: "last"}})
	if err != nil || len(trunk.subports) != valid.MaxVLAN {
		t.Fatalf("the last VLAN: %v, %v", last, err)
	}
	if _, err := p.AttachSubports(t.Context(), "t", []sdn.Subport{{Port: "one-too-many"}}); sdn.ReasonOf(err) != sdn.NoVLANs {
		t.Errorf("one more: %v", err)
	}
	trunk.subports = trunk.subports[:1]
	attach("d", "[GET trunks PUT trunks]")
	trunk.device = "busy"
	if _, err := p.AttachSubports(t.Context(), "t", []sdn.Subport{{Port: "busy"}}); sdn.ReasonOf(err) != sdn.InUse {
		t.Errorf("a port that has a device: %v", err)
	}
}

// A trunk is answered with the revision that it has after its tags were written.
func TestTrunkWithTags(t *testing.T) {
	tagged := `{"trunk": {"id": "t", "port_id": "p", "admin_state_up": true, "description": "kuryr/test/t/trunk", "project_id": "p1", "tags": ["a"], "revision_number": 4}}`
	p, _, _ := onScript(t, map[string][]says{
		"GET /trunks":        {{200, `{"trunks": []}`}},
		"POST /trunks":       {{201, `{"trunk": {"id": "t", "port_id": "p", "admin_state_up": true, "description": "kuryr/test/t/trunk", "project_id": "p1", "tags": [], "revision_number": 1}}`}},
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
