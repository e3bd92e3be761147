//go:build linux

package api

import (
	"context"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/kube/cni"
	"github.com/kuryr/kuryr/kube/cni/static"
	"github.com/kuryr/kuryr/sdn"
)

// binder remembers the last port that was plugged.
type binder struct{ plugged *bind.Interface }

func (b *binder) Plug(_ context.Context, i bind.Interface) (bind.Result, error) {
	b.plugged = &i
	return bind.Result{}, nil
}
func (b *binder) Unplug(context.Context, sdn.Port) error { return nil }
func (b *binder) State(context.Context, sdn.Port) (bind.State, error) {
	return bind.Whole, nil
}

// kubernetes answers with objects by path.
type kubernetes struct {
	mu      sync.Mutex
	objects map[string]string
	asked   int
	after   int  // how many questions are answered with an error first
	slow    bool // nobody who asks lives to hear the answer
	// end says that the time is over for who asks: at a question of this number, or where none comes, at a connection of this number. So a machine that is slow has the same time.
	end         func()
	connections int
}

const endAt = 6

// connection counts those that no question has come by.
func (k *kubernetes) connection(_ net.Conn, state http.ConnState) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if state != http.StateNew || k.asked > 0 || k.end == nil {
		return
	}
	if k.connections++; k.connections == endAt {
		k.end()
	}
}

func (k *kubernetes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if k.slow {
		<-r.Context().Done()
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.asked++; k.asked == endAt && k.end != nil {
		k.end()
	}
	object, there := k.objects[r.URL.Path]
	switch {
	case r.Header.Get("Authorization") != "Bearer secret-of-kuryr-cni":
		http.Error(w, "who is that", http.StatusUnauthorized)
	case k.asked <= k.after:
		http.Error(w, "not now", http.StatusServiceUnavailable)
	case !there:
		http.NotFound(w, r)
	default:
		_, _ = fmt.Fprint(w, object)
	}
}

const (
	podAt  = "/api/v1/namespaces/default/pods/nginx"
	portAt = portPath + "18f968a5-c420-4318-92d7-941eb5f9e60e"
	thePod = `{"metadata": {"uid": "u1", "annotations": {"openstack.org/kuryr-vif": "{\"eth0\": {\"versioned_object.data\": {\"selfLink\": \"/apis/openstack.org/v1/kuryrports/18f968a5-c420-4318-92d7-941eb5f9e60e\"}}, \"versioned_object.name\": \"KuryrPortCRD\", \"versioned_object.version\": \"1.0\"}"}}}`
	// The addresses of the document "Kuryr Kubernetes Port CRD Usage".
	thePort = `{"metadata": {"name": "18f968a5-c420-4318-92d7-941eb5f9e60e"}, "spec": {"id": "18f968a5-c420-4318-92d7-941eb5f9e60e", "address": "fa:16:3e:bf:84:ff", "node": "n1", "projectID": "project", "securityGroups": ["g"], "vif": {"type": "ovs", "details": {"bridge_name": "br-int"}},
		"network": {"id": "144164d9", "mtu": 1350, "subnets": [{"id": "s", "cidr": "10.11.9.0/24", "gateway": "10.11.9.1", "ips": ["10.11.9.5"], "dns": [], "routes": []}]}},
		"status": {"portStatus": "bound", "pod": {"uid": "u1", "interface": "eth0"}}}`
)

// configuration is that of kuryr-cni with such a server, and the token of a file.
func (k *kubernetes) configuration(t *testing.T) cni.Config {
	t.Helper()
	server := httptest.NewUnstartedServer(k)
	server.Config.ConnState = k.connection
	server.StartTLS()
	t.Cleanup(server.Close)
	dir := t.TempDir()
	ca, token := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "token")
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for path, text := range map[string][]byte{ca: certificate, token: []byte("secret-of-kuryr-cni\n")} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	limit := 60
	if k.slow {
		limit = 1
	}
	return cni.Config{CNIVersion: "1.0.0", Name: "kuryr", APIServer: server.URL, APICA: ca, APITokenFile: token, APITimeout: limit}
}

// add asks the server for a pod's port.
func add(t *testing.T, k *kubernetes, args string, change func(*cni.Config)) (string, *binder, error) {
	t.Helper()
	pause = 10 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	k.end = cancel
	conf := k.configuration(t)
	if change != nil {
		change(&conf)
	}
	b := &binder{}
	out, err := Add(ctx, cni.Call{Verb: cni.Add, Container: "a", Namespace: "/run/netns/a", Interface: "eth0", Args: args}, conf, static.In(t.TempDir(), b))
	return string(out), b, err
}

const ofPod = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=nginx"

// The port that the annotation names and that is the pod's by its own status is bound, also where the API fails at first.
func TestAdd(t *testing.T) {
	out, b, err := add(t, &kubernetes{objects: map[string]string{podAt: thePod, portAt: thePort}, after: 2}, ofPod+";K8S_POD_UID=u1", nil)
	if err != nil || !strings.Contains(out, `"10.11.9.5/24"`) || !strings.Contains(out, `"fa:16:3e:bf:84:ff"`) {
		t.Fatalf("%v\n%s", err, out)
	}
	if i := b.plugged; i == nil || i.Port.VIF.Type != "ovs" || i.Port.VIF.Details["bridge_name"] != "br-int" || i.MTU != 1350 || i.Namespace != "/run/netns/a" {
		t.Errorf("plugged %+v", b.plugged)
	} else if i.Port.Host != "n1" || i.Port.Project != "project" || len(i.Port.Groups) != 1 || len(i.Subnets) != 1 || i.Subnets[0].Network != "144164d9" {
		t.Errorf("plugged is not what the daemon would plug: %+v", b.plugged)
	}
}

// A static pod's container is known to the runtime by another UID than the pod's object has; that one names it.
func TestStaticPod(t *testing.T) {
	static := strings.Replace(thePod, `"annotations": {`, `"annotations": {"kubernetes.io/config.mirror": "of-the-file", `, 1)
	all := map[string]string{podAt: static, portAt: thePort}
	if _, b, err := add(t, &kubernetes{objects: all}, ofPod+";K8S_POD_UID=of-the-file", nil); err != nil || b.plugged == nil {
		t.Errorf("%v, plugged %+v", err, b.plugged)
	}
	if _, b, err := add(t, &kubernetes{objects: all}, ofPod+";K8S_POD_UID=of-another", nil); cni.AsError(err).Code != cni.NotFound.Code || b.plugged != nil {
		t.Errorf("%v, plugged %+v", err, b.plugged)
	}
}

// TestDocumentedFile gives the plugin the flat-mode design's file with its printed fields, by
// standard input or in the documented folder alone. Server and CA are the kubelet's.
func TestDocumentedFile(t *testing.T) {
	dir := t.TempDir()
	file, kubelet := filepath.Join(dir, "10-kuryr.conf"), filepath.Join(dir, "kubelet.conf")
	before := [...]any{documented, kubeconfigs, configurations}
	t.Cleanup(func() {
		documented, kubeconfigs, configurations = before[0].(string), before[1].([]string), before[2].([]string)
	})
	documented = filepath.Join(dir, "absent")
	kubeconfigs, configurations = []string{documented, kubelet}, []string{file}
	printed := `{"name": "kuryr", "type": "kuryr", "api_token": "secret-of-kuryr-cni"}`
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(file, printed)
	objects := map[string]string{podAt: thePod, portAt: thePort}
	asPrinted := func(c *cni.Config) {
		ca, err := os.ReadFile(c.APICA)
		if err != nil {
			t.Fatal(err)
		}
		write(kubelet, fmt.Sprintf(`{current-context: a, contexts: [{name: a, context: {cluster: b, user: c}}],
users: [], clusters: [{name: x, cluster: {server: "https://x"}},
{name: b, cluster: {server: %q, certificate-authority-data: %s}}]}`,
			c.APIServer, base64.StdEncoding.EncodeToString(ca)))
		limit := c.APITimeout
		if *c, err = cni.ParseConfig(cni.Add, []byte(printed)); err != nil {
			t.Fatal(err)
		}
		c.APITimeout = limit
	}
	given := func(change func(*cni.Config)) error {
		out, _, err := add(t, &kubernetes{objects: objects}, ofPod, change)
		if err == nil && !strings.Contains(out, "10.11.9.5/24") {
			t.Errorf("ADD: %s", out)
		}
		return err
	}
	if err := given(asPrinted); err != nil {
		t.Errorf("by standard input: %v", err)
	}
	withoutToken := func(c *cni.Config) { asPrinted(c); c.APIToken = "" }
	if err := given(withoutToken); !errors.Is(err, cni.ErrNoAPI) {
		t.Errorf("without any token: %v", err)
	}
	documented = file
	if err := given(withoutToken); err != nil {
		t.Errorf("by the documented file: %v", err)
	}
	for text, says := range map[string]string{
		"": "no cluster", "null": "no cluster", "[": "yaml", "clusters: 1": "yaml", "current-context: a": "no cluster",
		"{current-context: a, contexts: [{name: a, context: {cluster: b}}], " +
			"clusters: [{name: b, cluster: {server: 'http://x'}}]}": "https://",
	} {
		wrong := func(c *cni.Config) { asPrinted(c); write(kubelet, text) }
		err := given(wrong)
		if e := cni.AsError(err); e == nil || e.Code != cni.BadConfig.Code || !strings.Contains(e.Details, says) {
			t.Errorf("kubeconfig %q: %v", text, err)
		}
	}
	for text, want := range map[string]struct {
		kind cni.Kind
		says string
	}{
		"{": {cni.Undecodable, "JSON"},
		documentedWith(`"api_server": "http://10.0.0.1:8080"`):    {cni.BadConfig, "api_server"},
		documentedWith(`"api_ca": "ca.crt"`):                      {cni.BadConfig, "api_ca"},
		documentedWith(`"api_timeout": -1`):                       {cni.BadConfig, "api_timeout"},
		strings.Replace(printed, `"kuryr", "api`, `"x", "api`, 1): {cni.BadConfig, "type"},
		printed + strings.Repeat(" ", cni.MaxInput):               {cni.IOFailure, "bytes"},
	} {
		write(file, text)
		err := given(withoutToken)
		e := cni.AsError(err)
		if e == nil || e.Code != want.kind.Code || !strings.Contains(e.Details, want.says) ||
			!strings.Contains(e.Details, file) || strings.Contains(e.Details, "secret-of") {
			t.Errorf("documented file %.80q: %v, want %s naming %q", text, err, want.kind.Name, want.says)
		}
	}
	documented = dir
	if err := given(withoutToken); cni.AsError(err) == nil || cni.AsError(err).Code != cni.IOFailure.Code {
		t.Errorf("a documented file that is a folder: %v", err)
	}
	documented = file
	write(file, documentedWith(`"api_timeout": 7`))
	for own, want := range map[int]time.Duration{0: 7 * time.Second, 3: 3 * time.Second} {
		conf := cni.Config{APIServer: "https://10.0.0.1:6443", APITimeout: own}
		if a, err := accessOf(conf); err != nil || a.limit != want {
			t.Errorf("api_timeout %d beside the documented 7: limit %s, %v", own, a.limit, err)
		}
	}
}

// TestKubeletsCA takes a missing CA from the kubelet's kubeconfig, if that has the same
// server. A relative path is one beside the kubeconfig.
func TestKubeletsCA(t *testing.T) {
	before := kubeconfigs
	t.Cleanup(func() { kubeconfigs = before })
	objects := map[string]string{podAt: thePod, portAt: thePort}
	for name, row := range map[string]struct {
		server string // of the kubeconfig; %s is the API's
		ca     string // of the kubeconfig; %s is the CA in base64
		says   string // "" is success
	}{
		"data":             {"%s", "certificate-authority-data: %s", ""},
		"closing slash":    {"%s/", "certificate-authority-data: %s", ""},
		"relative path":    {"%s", "certificate-authority: ca.pem", ""},
		"no such file":     {"%s", "certificate-authority: other.pem", "other.pem"},
		"another server":   {"https://10.0.0.1:6443", "certificate-authority-data: %s", "certificate"},
		"broken":           {"http://%s", "certificate-authority-data: %s", "certificate"},
		"the system's own": {"%s", "insecure-skip-tls-verify: true", "certificate"},
	} {
		_, b, err := add(t, &kubernetes{objects: objects}, ofPod, func(c *cni.Config) {
			dir := filepath.Dir(c.APICA)
			ca, err := os.ReadFile(c.APICA)
			if err != nil {
				t.Fatal(err)
			}
			server := strings.Replace(row.server, "%s", c.APIServer, 1)
			entry := strings.Replace(row.ca, "%s", base64.StdEncoding.EncodeToString(ca), 1)
			text := fmt.Sprintf(`{current-context: a, contexts: [{name: a, context: {cluster: b}}],
clusters: [{name: b, cluster: {server: %q, %s}}]}`, server, entry)
			kubeconfigs = []string{filepath.Join(dir, "kubelet.conf")}
			if err := os.WriteFile(kubeconfigs[0], []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			c.APICA = ""
		})
		if row.says == "" {
			if err != nil || b.plugged == nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if e := cni.AsError(err); e == nil || !strings.Contains(e.Details, row.says) || b.plugged != nil {
			t.Errorf("%s: %v, want an error that names %q", name, err, row.says)
		}
	}
}

// documentedWith is the documented file with another field.
func documentedWith(field string) string {
	return `{"name": "kuryr", "type": "kuryr", "api_token": "secret-of-kuryr-cni", ` + field + `}`
}

// An API server that does not answer in time is named as such, not a missing port.
func TestSlow(t *testing.T) {
	_, _, err := add(t, &kubernetes{slow: true}, ofPod, nil)
	if e := cni.AsError(err); e == nil || e.Code != cni.Unavailable.Code || !strings.Contains(e.Details, "has not answered in 1s") {
		t.Errorf("%v", err)
	}
}

// STATUS is whether the API answers and takes the token; a port is not asked for.
func TestStatus(t *testing.T) {
	there := map[string]string{"/version": `{"major": "1"}`}
	for name, row := range map[string]struct {
		k      *kubernetes
		change func(*cni.Config)
		says   string // "" is ready
	}{
		"ready":         {&kubernetes{objects: there}, nil, ""},
		"expired token": {&kubernetes{objects: there}, func(c *cni.Config) { _ = os.WriteFile(c.APITokenFile, []byte("expired"), 0o600) }, "401"},
		"no token":      {&kubernetes{objects: there}, func(c *cni.Config) { c.APITokenFile = "" }, "api_token_file"},
		"nobody there":  {&kubernetes{objects: there}, func(c *cni.Config) { c.APIServer = "https://127.0.0.1:1" }, "refused"},
		"slow":          {&kubernetes{slow: true}, nil, "deadline"},
	} {
		conf := row.k.configuration(t)
		if row.change != nil {
			row.change(&conf)
		}
		out, err := Do(t.Context(), cni.Call{Verb: cni.Status}, conf, nil)
		if row.says == "" {
			if err != nil || out != nil {
				t.Errorf("%s: %v, %q", name, err, out)
			}
			continue
		}
		if e := cni.AsError(err); e == nil || e.Code != cni.NotReady.Code || !strings.Contains(e.Details, row.says) {
			t.Errorf("%s: %v, want %q", name, err, row.says)
		}
	}
}

func TestRefused(t *testing.T) {
	all := map[string]string{podAt: thePod, portAt: thePort}
	with := func(path, text string) map[string]string {
		changed := map[string]string{podAt: thePod, portAt: thePort, path: text}
		if text == "" {
			delete(changed, path)
		}
		return changed
	}
	open, closed := filepath.Join(t.TempDir(), "open.conf"), filepath.Join(t.TempDir(), "closed.conf")
	for path, text := range map[string]string{open: `{"api_token": "secret-of-kuryr-cni"}`, closed: `{"api_token": "expired"}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(open, 0o644); err != nil {
		t.Fatal(err)
	}
	configurations = []string{open, closed}
	named := func(c *cni.Config) { c.Network = "green" }
	withMAC := func(c *cni.Config) { c.Runtime.MAC = "fa:16:3e:00:00:01" }
	for name, row := range map[string]struct {
		objects map[string]string
		args    string
		change  func(*cni.Config)
		kind    cni.Kind
		says    string
	}{
		"no pod in the arguments": {all, "", nil, cni.BadEnvironment, "K8S_POD_NAME"},
		"unknown pod":             {with(podAt, ""), ofPod, nil, cni.NotFound, "nginx"},
		"another UID":             {all, ofPod + ";K8S_POD_UID=u2", nil, cni.NotFound, "u2"},
		"no annotation":           {with(podAt, `{"metadata": {"uid": "u1"}}`), ofPod, nil, cni.TimedOut, "nginx"},
		"annotation of no port":   {with(portAt, ""), ofPod, nil, cni.TimedOut, "nginx"},
		"written by hand":         {with(portAt, strings.ReplaceAll(thePort, `"uid": "u1"`, `"uid": "u9"`)), ofPod, nil, cni.TimedOut, "nginx"},
		"another interface's":     {with(portAt, strings.ReplaceAll(thePort, `"interface": "eth0"`, `"interface": "eth1"`)), ofPod, nil, cni.TimedOut, "nginx"},
		"a path as a port":        {with(podAt, strings.ReplaceAll(thePod, "18f968a5-c420-4318-92d7-941eb5f9e60e", "../x")), ofPod, nil, cni.TimedOut, "nginx"},
		"a port without a MAC":    {with(portAt, strings.ReplaceAll(thePort, "fa:16:3e:bf:84:ff", "")), ofPod, nil, cni.Undecodable, "spec.address"},
		"a wrong name server":     {with(portAt, strings.ReplaceAll(thePort, `"dns": []`, `"dns": ["x"]`)), ofPod, nil, cni.Undecodable, "subnets.dns"},
		"a network":               {all, ofPod, named, cni.UnsupportedField, "network"},
		"a MAC":                   {all, ofPod, withMAC, cni.UnsupportedField, "runtimeConfig.mac"},
		"no token":                {all, ofPod, func(c *cni.Config) { c.APITokenFile = "" }, cni.BadConfig, "api_token_file"},
		"token file of others":    {all, ofPod, func(c *cni.Config) { _ = os.Chmod(c.APITokenFile, 0o640) }, cni.BadConfig, "0640"},
		"configuration of others": {all, ofPod, func(c *cni.Config) { c.APITokenFile, c.APIToken = "", "secret-of-kuryr-cni" }, cni.BadConfig, "0644"},
		"token of no known file":  {all, ofPod, func(c *cni.Config) { c.APITokenFile, c.APIToken = "", "secret-of-nobody" }, cni.BadConfig, "api_token_file"},
		"expired token":           {all, ofPod, func(c *cni.Config) { c.APITokenFile, c.APIToken = "", "expired" }, cni.Denied, "401"},
		"unknown authority":       {all, ofPod, func(c *cni.Config) { c.APICA = "" }, cni.Unavailable, "certificate"},
		"nobody there":            {all, ofPod, func(c *cni.Config) { c.APIServer, c.APITimeout = "https://127.0.0.1:1", 2 }, cni.Unavailable, "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			_, b, err := add(t, &kubernetes{objects: row.objects}, row.args, row.change)
			if e := cni.AsError(err); e == nil || e.Code != row.kind.Code || !strings.Contains(e.Details, row.says) || strings.Contains(e.Details, "secret-of") || b.plugged != nil {
				t.Errorf("%v, want %s naming %q; plugged %v", err, row.kind.Name, row.says, b.plugged)
			}
		})
	}
}
