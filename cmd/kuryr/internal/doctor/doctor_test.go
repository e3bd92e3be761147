package doctor

import (
	"errors"
	"io/fs"
	"net/netip"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// Each check is shown what is well, and one thing after the other that is not.
func TestChecks(t *testing.T) {
	t.Parallel()
	prefix := netip.MustParsePrefix
	files := func(change func(*FileFacts)) []Finding {
		f := FileFacts{
			Files: []File{
				{Path: "/s", What: "store", Secret: true, Mode: 0o600},
				{Path: "/d", What: "folder", Mode: fs.ModeDir | 0o755},
			},
			Disks: []Disk{{Path: "/d", Free: 1 << 30, Size: 10 << 30, Inodes: 1000, Within: 2000}},
			Pins:  2, Seen: 2, Now: noon, Newest: noon,
		}
		change(&f)
		return Files(f)
	}
	daemon := func(change func(*DaemonFacts)) []Finding {
		d := DaemonFacts{Version: "1", Here: "1"}
		change(&d)
		return Daemon(d)
	}
	kernel := func(change func(*KernelFacts)) []Finding {
		k := KernelFacts{
			Features: []Feature{{Name: "bridges", Option: "CONFIG_BRIDGE", Module: "bridge"}, {
				Name: "tunnels", Option: "CONFIG_VXLAN", Module: "vxlan", Only: "no tunnels",
			}},
			IPv6: true, SCTP: true, VLAN: true,
		}
		change(&k)
		return Kernel(k)
	}
	api := func(change func(*APIFacts)) []Finding {
		a := APIFacts{Listen: "0.0.0.0:9696", Cert: "/c", Until: noon.AddDate(1, 0, 0), Entries: 2, Now: noon}
		change(&a)
		return API(a)
	}
	memory := func(change func(*OrphanFacts)) []Finding {
		m := OrphanFacts{Engine: "e", Now: noon}
		change(&m)
		return Orphans(m)
	}
	missing := func(change func(*Orphan)) []Finding {
		return memory(func(m *OrphanFacts) {
			x := Orphan{
				Noun: "network", Name: "n", Why: "Docker does not have it", Since: noon.Add(-time.Minute),
				Due: noon.Add(time.Minute), Changed: noon.Add(-time.Hour),
			}
			change(&x)
			m.Orphans = []Orphan{x}
		})
	}
	engine := func(change func(*EngineFacts)) []Finding {
		e := EngineFacts{Socket: "/d.sock", Version: "29.0.0"}
		change(&e)
		return Engine(e)
	}
	unit := func(change func(*UnitFacts)) []Finding {
		u := UnitFacts{Systemd: true, Docker: true, Path: "/k.service", Text: []byte(
			"[Unit]\nBefore=docker.service other.service\n[Service]\nKillMode=process\nPrivateTmp=no\n",
		)}
		change(&u)
		return Unit(u)
	}
	with := func(text string) func(*UnitFacts) { return func(u *UnitFacts) { u.Text = append(u.Text, text...) } }
	for _, tc := range []struct {
		name    string
		found   []Finding
		verdict Verdict
		says    string // of the first that is not well
	}{
		{"kernel", kernel(func(*KernelFacts) {}), OK, ""},
		{
			"kernel without bridges",
			kernel(func(k *KernelFacts) { k.Features[0].Err = errors.New("not supported") }), Problem,
			"no bridges (not supported)",
		},
		{
			"kernel without tunnels", kernel(func(k *KernelFacts) { k.Features[1].Err = errors.New("x") }),
			Warning, "no tunnels: no tunnels",
		},
		{"kernel without IPv6", kernel(func(k *KernelFacts) { k.IPv6 = false }), Warning, "no IPv6"},
		{"kernel without SCTP", kernel(func(k *KernelFacts) { k.SCTP = false }), OK, ""},
		{"kernel without VLANs", kernel(func(k *KernelFacts) { k.VLAN = false }), OK, ""},
		{"kernel not tried", kernel(func(k *KernelFacts) { k.Untried = errors.New("denied") }), Warning, "denied"},

		{"limits", Limits(LimitFacts{Conntrack: Share{79, 100}, DaemonFiles: Share{500, 0}}), OK, ""},
		{"conntrack", Limits(LimitFacts{Conntrack: Share{80, 100}}), Warning, "80 of 100 tracked connections"},
		{"conntrack full", Limits(LimitFacts{Conntrack: Share{96, 100}}), Problem, "96 of 100 tracked connections"},
		{"neighbours", Limits(LimitFacts{Neighbours4: Share{1000, 1024}}), Problem, "IPv4 neighbours"},
		{"neighbours of IPv6", Limits(LimitFacts{Neighbours6: Share{900, 1024}}), Warning, "IPv6 neighbours"},
		{"files", Limits(LimitFacts{SystemFiles: Share{95, 100}}), Problem, "open files of the machine"},
		{"files of kuryr", Limits(LimitFacts{DaemonFiles: Share{95, 100}}), Problem, "open files of kuryr"},
		{"tasks", Limits(LimitFacts{PIDs: Share{95, 100}}), Problem, "tasks"},
		{"strict filter", Limits(LimitFacts{Strict: "eth1"}), Warning, "eth1 drops"},

		{"files and disks", files(func(*FileFacts) {}), OK, ""},
		{"open store", files(func(f *FileFacts) { f.Files[0].Mode = 0o640 }), Problem, "store /s is open to others (0640)"},
		{
			"writable folder", files(func(f *FileFacts) { f.Files[1].Mode = fs.ModeDir | 0o777 }), Problem,
			"folder /d is open to others (0777)",
		},
		{"user's store", files(func(f *FileFacts) { f.Files[0].UID = 7 }), Problem, "belongs to user 7"},
		{"hidden store", files(func(f *FileFacts) { f.Files[0].Err = errors.New("denied") }), Problem, "denied"},
		{"no store", files(func(f *FileFacts) { f.Files[0] = File{Absent: true} }), OK, ""},
		{"full disk", files(func(f *FileFacts) { f.Disks[0].Free = 1 << 20 }), Problem, "1 MiB free"},
		{"disk nearly full", files(func(f *FileFacts) { f.Disks[0].Free = 100 << 20 }), Warning, "100 MiB free"},
		{"small disk", files(func(f *FileFacts) { f.Disks[0].Size, f.Disks[0].Free = 64<<20, 32<<20 }), OK, ""},
		{"no inodes", files(func(f *FileFacts) { f.Disks[0].Inodes = 3 }), Problem, "3 inodes free"},
		{"inodes uncounted", files(func(f *FileFacts) { f.Disks[0].Inodes, f.Disks[0].Within = 0, 0 }), OK, ""},
		{"read-only", files(func(f *FileFacts) { f.Disks[0].ReadOnly = true }), Problem, "read-only"},
		{"pins unseen", files(func(f *FileFacts) { f.Seen = 0 }), Problem, "2 of 2 pinned"},
		{"old clock", files(func(f *FileFacts) { f.Now, f.Newest = time.Unix(0, 0), time.Time{} }), Problem, "1970-01-01"},
		{"clock set back", files(func(f *FileFacts) { f.Newest = noon.Add(time.Hour) }), Warning, "yet to come"},

		{"routes", Routes(RouteFacts{Uplinks: []netip.Prefix{prefix("100.64.0.0/16")}, Host: []Route{
			{To: prefix("0.0.0.0/0"), Link: "eth0"}, {To: prefix("100.64.0.4/31"), Link: "kr1", Own: true},
			{To: prefix("10.0.0.0/8"), Link: "eth0"}}}), OK, ""},
		{
			"uplink range taken",
			Routes(RouteFacts{Uplinks: []netip.Prefix{prefix("100.64.0.0/16")}, Host: []Route{{
				To: prefix("100.64.7.0/24"), Link: "vpn0",
			}}}),
			Problem, "100.64.7.0/24 by vpn0",
		},
		{
			"unreached", Routes(RouteFacts{Unreached: []Unreached{{"10.0.0.0/24", "r", "taken"}}}), Warning,
			"10.0.0.0/24 of router r: taken",
		},

		{"unit", unit(func(*UnitFacts) {}), OK, ""},
		{"no systemd", Unit(UnitFacts{}), OK, ""},
		{"managed plugin", unit(func(u *UnitFacts) { u.Path, u.Managed = "", true }), OK, ""},
		{"no docker unit", unit(func(u *UnitFacts) { u.Docker, u.Path = false, "" }), OK, ""},
		{"no unit", unit(func(u *UnitFacts) { u.Path = "" }), Warning, "no kuryr.service"},
		{
			"unit not ordered",
			unit(func(u *UnitFacts) { u.Text = []byte("KillMode=process\nAfter=docker.service") }), Problem,
			"not ordered before",
		},
		{"unit with /proc of its own", unit(with("ProtectProc=invisible")), Problem, "ProtectProc=invisible"},
		{"unit with the host's /proc", unit(with("ProtectProc=default\nProcSubset=all")), OK, ""},
		{
			"unit with mounts",
			unit(func(u *UnitFacts) { u.Text = append(u.Text, "ProtectSystem=full"...) }), Problem,
			"ProtectSystem=full",
		},
		{"unit that kills", unit(func(u *UnitFacts) { u.Text = []byte("Before=docker.service") }), Warning, "KillMode"},

		{"docker", engine(func(*EngineFacts) {}), OK, ""},
		{"docker not asked", Engine(EngineFacts{}), OK, ""},
		{
			"docker away", engine(func(e *EngineFacts) { e.Err = errors.New("refused") }), Problem,
			"does not answer at /d.sock: refused",
		},
		{"old docker", engine(func(e *EngineFacts) { e.Version = "19.03.1" }), Warning, "older"},
		{"odd docker", engine(func(e *EngineFacts) { e.Version = "library-import" }), OK, ""},
		{
			"container down",
			engine(func(e *EngineFacts) { e.Stopped = []Stopped{{"web", "always", "no plugin"}} }), Problem,
			"container web should run",
		},

		{"kuryr", daemon(func(*DaemonFacts) {}), OK, ""},
		{"API", api(func(*APIFacts) {}), OK, "holds until 2027-05-01; tokens and users in the token file: 2"},
		{"API nowhere", api(func(a *APIFacts) { *a = APIFacts{} }), OK, "not served over TCP"},
		{"certificate missing", api(func(a *APIFacts) { a.CertErr = errors.New("no such file") }), Problem, "no such file"},
		{
			"certificate expired", api(func(a *APIFacts) { a.Until = noon.Add(-time.Second) }), Problem,
			"expired on 2026-05-01",
		},
		{
			"certificate expires", api(func(a *APIFacts) { a.Until = noon.AddDate(0, 0, 29) }), Warning,
			"expires on 2026-05-30",
		},
		{"token file spoilt", api(func(a *APIFacts) { a.TokensErr = errors.New("t:3: the role") }), Problem, "t:3: the role"},
		{"token file empty", api(func(a *APIFacts) { a.Entries = 0 }), Warning, "nobody is let in"},
		{"kuryr away", daemon(func(d *DaemonFacts) { d.Err = errors.New("kuryr is not running") }), Problem, "not running"},
		{
			"managed kuryr away",
			daemon(func(d *DaemonFacts) { d.Err, d.Managed = errors.New("kuryr is not running"), true }),
			Problem, "not running",
		},
		{"kuryr not ready", daemon(func(d *DaemonFacts) { d.Reasons = []string{"starting"} }), Problem, "starting"},
		{"old kuryr", daemon(func(d *DaemonFacts) { d.Version = "0" }), Warning, "version 0"},
		{
			"kernel differs", daemon(func(d *DaemonFacts) { d.Differences = []string{"route is missing"} }),
			Problem, "route is missing",
		},
		{"kernel differs in parts", daemon(func(d *DaemonFacts) {
			d.Differences = []string{"[r1] route default: want present"}
			d.Kernel = []Difference{{"router of blue", "route default", "present", ""}}
		}), Problem, "router of blue: routes missing (1)"},
		{"kernel not compared", daemon(func(d *DaemonFacts) { d.CheckErr = errors.New("busy") }), Problem, "busy"},
		{
			"firewall",
			daemon(func(d *DaemonFacts) { d.Host = []Host{{What: "it drops", Remediation: "open it"}} }), Problem,
			"it drops",
		},
		{
			"note of the firewall",
			daemon(func(d *DaemonFacts) {
				d.Host = []Host{{What: "it is legacy", Remediation: "use another", Note: true}}
			}),
			Warning, "it is legacy",
		},
		{"SDN apart", daemon(func(d *DaemonFacts) { d.Apart = true }), OK, ""},

		{"memory", memory(func(*OrphanFacts) {}), OK, ""},
		{"memory off", memory(func(m *OrphanFacts) { m.Off = "docker.api is empty" }), OK, ""},
		{"memory not compared", memory(func(m *OrphanFacts) { m.Err = "away" }), Warning, "away"},
		{"unknown network", memory(func(m *OrphanFacts) { m.Unknown = []string{"blue"} }), Problem, "network blue"},
		{
			"interface gone", memory(func(m *OrphanFacts) { m.Broken = []Broken{{"web", "e", "absent"}} }),
			Problem, "container web (endpoint e) runs, and its interface is gone",
		},
		{
			"interface loose", memory(func(m *OrphanFacts) { m.Broken = []Broken{{"web", "e", "loose"}} }),
			Problem, "not on its bridge",
		},
		{
			"endpoint lost", memory(func(m *OrphanFacts) { m.Broken = []Broken{{"web", "e", "unknown"}} }),
			Problem, "the SDN does not have its endpoint",
		},
		{"forgotten", missing(func(*Orphan) {}), Warning, "for 1m0s at least; it will be removed in 1m0s"},
		{"forgotten and due", missing(func(x *Orphan) { x.Due = noon }), Problem, "should be gone by now"},
		{"forgotten for good", missing(func(x *Orphan) { x.Due = time.Time{} }), Warning, "is forgotten"},
		{
			"forgotten with a container",
			missing(func(x *Orphan) { x.Kept, x.Connected = "a container has it", true }), Warning,
			"it stays: a container has it",
		},
		{
			"another engine's", missing(func(x *Orphan) { x.Kept, x.Engine = "another engine's", "abc" }),
			Warning, "another engine's",
		},
		{
			"being made",
			missing(func(x *Orphan) {
				x.Since, x.Due, x.Changed = time.Time{}, time.Time{}, noon.Add(-time.Second)
			}),
			OK, "",
		},
	} {
		if got := Worst(tc.found); got != tc.verdict {
			t.Errorf("%s: %s, want %s: %+v", tc.name, got, tc.verdict, tc.found)
		}
		WorstFirst(tc.found)
		if len(tc.found) == 0 {
			t.Fatalf("%s: no finding at all", tc.name)
		}
		first := tc.found[0]
		if !strings.Contains(first.What, tc.says) || first.Check == "" || (first.Verdict == OK) != (first.Remediation == "") {
			t.Errorf("%s: %+v, want one that says %q and has a remediation", tc.name, first, tc.says)
		}
	}
}

func TestForgetEngineIsNamed(t *testing.T) {
	t.Parallel()
	for engine, want := range map[string]string{"abc": "--forget-engine abc`", "": "--forget-engine unknown`"} {
		found := Orphans(OrphanFacts{Now: noon, Orphans: []Orphan{{Kept: "k", Engine: engine}}})
		if !strings.Contains(found[0].Remediation, want) {
			t.Errorf("remediation %q", found[0].Remediation)
		}
	}
}

func TestFailedStart(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]bool{
		"": false,
		"OCI runtime create failed: no such file":                    false,
		"error while removing network: plugin not found":             true,
		"dial unix /run/docker/plugins/kuryr.sock: connect: refused": true,
	} {
		if got := FailedStart(message, "kuryr"); got != want {
			t.Errorf("%q: %t", message, got)
		}
	}
}
