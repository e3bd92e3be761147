package house

import (
	"fmt"
	"slices"
	"strings"
)

// module is the path before every import of ours.
const module = "github.com/kuryr/kuryr/"

// importRule says what of ours the packages of a folder may import. A folder stands for itself and all below it; of the
// rules that fit a package the one with the longest folder counts.
type importRule struct {
	folder string
	may    []string
	why    string
}

// Everybody but sdn itself may import internal, save what is commands'. A trailing "!" is the folder without what is below it: a front end uses the SDN's nouns and
// contract, not a provider, which lies below.
var importRules = []importRule{
	{"sdn", nil, "the SDN's nouns and contract import nothing of ours, so that everything may import them"},
	{"sdn/sdntest", []string{"sdn!"}, "the contract suite knows the contract only"},
	{"sdn/restapi", []string{"sdn!"}, "any Provider is served, so none is known"},
	{"sdn/local", []string{"sdn!", "sdn/sdntest", "datapath"}, "a provider makes the SDN's nouns exist; it knows no front end"},
	{"sdn/neutron", []string{"sdn!", "sdn/sdntest", "datapath"}, "a provider makes the SDN's nouns exist; it knows no front end"},
	{"sdn/neutron/neutrontest", []string{}, "it stands before a Neutron and knows HTTP only"},
	{"sdn/nested", []string{"sdn!"}, "it stands before any Provider, so none is known"},
	{"bind", []string{"sdn!", "bind"}, "a port is plugged the same way whoever asks for it"},
	{"datapath", []string{"sdn!", "datapath"}, "the data path is shared by a provider and a front end, and knows neither"},
	{"docker", []string{"sdn!", "bind", "docker"}, "a front end speaks to the contract, whatever SDN is behind it"},
	{"kube", []string{"sdn!", "bind", "kube"}, "a front end speaks to the contract, whatever SDN is behind it"},
	{"kube/node", []string{"sdn!", "bind", "kube", "datapath"}, "of the front ends only the node daemon balances services itself"},
	{"kube/install", []string{"deploy/kubernetes"}, "it writes manifests, and knows nothing of what they run"},
	{"kube/uninstall", []string{"kube/api/v1", "kube/install"}, "it takes away what was installed, and asks no SDN"},
	{"kurma", []string{"sdn!", "bind", "kurma"}, "a front end speaks to the contract, whatever SDN is behind it"},
	{"internal", []string{"sdn!"}, "helpers know at most the SDN's nouns, nothing of what uses them"},
	{"internal/admin", []string{"sdn!", "sdn/restapi"}, "it speaks with a running kuryr by the API that this serves"},
	{"internal/topology", []string{"sdn!", "sdn/restapi"}, "it draws what that API answers"},
	{"cmd", []string{"*"}, "only main packages wire a provider to a front end"},
	{"test", []string{"*"}, "suites may look at everything"},
	{"hack", []string{"kurma/image/build"}, "what makes files of the tree asks the package that knows their form"},
	{"deploy", []string{}, "what is deployed is not code"},
}

// commands are the helpers of main packages: through them others would reach what they must not import.
var commands = []string{"internal/admin", "internal/topology"}

// Front ends test with the embedded provider on a temporary store: real semantics instead of a mock. Providers' tests
// run the contract suite, and sdn's own tests may too.
var testsMayAlso = map[string][]string{
	"docker":      {"sdn/local", "sdn/nested", "datapath"},
	"kube":        {"sdn/local", "datapath"},
	"kube/node":   {"sdn/local", "datapath"},
	"kurma":       {"sdn/local", "datapath"},
	"sdn/nested":  {"sdn/local", "sdn/neutron", "datapath"},
	"sdn/neutron": {"sdn/neutron/neutrontest", "sdn/local", "sdn/restapi"},
	"sdn/restapi": {"sdn/local", "sdn/sdntest"},
	"sdn/sdntest": {"sdn/local"},
}

// checkImport returns what law package from (a folder of the tree) breaks by importing path, or "" if none.
func checkImport(from, path string, inTest bool) string {
	to, ours := strings.CutPrefix(path, module)
	if !ours {
		return ""
	}
	for _, helper := range commands {
		if within(to, helper) {
			if slices.ContainsFunc(append(slices.Clone(commands), "cmd", "test"), func(top string) bool { return within(from, top) }) {
				return ""
			}
			return fmt.Sprintf("%s must not import %s: it is a helper of commands", from, to)
		}
	}
	if within(to, "internal") && from != "sdn" {
		return ""
	}
	rule, found := ruleFor(from)
	if !found {
		return fmt.Sprintf("%s has no import rule: give it one in internal/house", from)
	}
	may := rule.may
	if inTest {
		may = append(slices.Clone(may), testsMayAlso[rule.folder]...)
		if to == from {
			return "" // an external test of the package itself
		}
	}
	for _, folder := range may {
		if folder == "*" || within(to, folder) {
			return ""
		}
	}
	return fmt.Sprintf("%s must not import %s: %s", from, to, rule.why)
}

func ruleFor(folder string) (importRule, bool) {
	var best importRule
	for _, r := range importRules {
		if within(folder, r.folder) && len(r.folder) > len(best.folder) {
			best = r
		}
	}
	return best, best.folder != ""
}

// within tells whether folder is of or below top; where top ends in "!", whether it is top itself.
func within(folder, top string) bool {
	if exact, only := strings.CutSuffix(top, "!"); only {
		return folder == exact
	}
	return folder == top || strings.HasPrefix(folder, top+"/")
}

// callRule forbids calls of a package's functions, or the import of the package where no functions are named.
type callRule struct {
	folders []string // where it holds; everywhere but under test where empty
	pkg     string
	funcs   []string
	why     string
}

var callRules = []callRule{
	{nil, "time", []string{"Sleep", "Tick"}, "wait for the event, or for a timer that a context can end"},
	{[]string{"bind", "sdn", "docker", "datapath/fabric"}, "os/exec", nil, "a process costs more than the netlink messages it would send"},
	{[]string{"datapath", "docker", "sdn", "kube", "cmd", "internal/doctor"}, "runtime", []string{"LockOSThread"}, "netns.Do visits a namespace, and netns.OnOwnThread leaves a thread in one, never the process's first"},
}

// leadersProc are paths that the kernel answers for the process's first thread, whatever namespace that is visiting.
var leadersProc = []string{"/proc/net", "/proc/self/net", "/proc/self/ns/net"}

// checkText returns the law that a string constant breaks.
func checkText(text string) string {
	for _, p := range leadersProc {
		if within(strings.TrimPrefix(text, "/"), strings.TrimPrefix(p, "/")) {
			return fmt.Sprintf("%q is of the process's first thread, which may be in another namespace: /proc/thread-self is the caller's", text)
		}
	}
	return ""
}

// checkCall returns the law that folder breaks by the use of function name of pkg (name is "" for the import alone).
func checkCall(folder, pkg, name string) string {
	if within(folder, "test") || within(folder, "internal/nstest") {
		return ""
	}
	for _, r := range callRules {
		if r.pkg != pkg || r.funcs == nil != (name == "") || r.funcs != nil && !slices.Contains(r.funcs, name) {
			continue
		}
		if r.folders != nil && !slices.ContainsFunc(r.folders, func(top string) bool { return within(folder, top) }) {
			continue
		}
		return fmt.Sprintf("%s must not use %s: %s", folder, strings.TrimSuffix(pkg+"."+name, "."), r.why)
	}
	return ""
}

// leanRule keeps packages, whoever imports them, out of a program. A package stands for itself and all below it.
type leanRule struct {
	program string
	without []string
	why     string
}

var leanRules = []leanRule{
	{"cmd/kuryr", []string{"k8s.io", "sigs.k8s.io", "golang.org/x/crypto/x509roots"}, "they would double its size, on the disk and in memory, where no cluster is: what needs them has the build tag kubernetes, and is in kuryr-kubernetes"},
	{"cmd/kuryr-cni", []string{"os", "fmt", "net", "reflect", "time", "unicode"}, "a runtime starts it for each container, and they cost as much as its whole work: what needs them is in kuryr-cni-api"},
	{"cmd/kuryr-cni-api", []string{"k8s.io", "sigs.k8s.io"}, "it runs once for each container where no daemon is: what it reads of a KuryrPort is package portspec's"},
	{"cmd/kuryr-oci-hook", []string{"k8s.io", "sigs.k8s.io", "crypto/tls", "net/http", "net"}, "a runtime starts it for each container, which waits for it"},
	{"cmd/kuryr-vif", []string{"k8s.io", "sigs.k8s.io", "crypto/tls", "net/http"}, "it is started for each port"},
}

// checkLean returns the laws that a program breaks by being made of these packages.
func checkLean(r leanRule, packages []string) (broken []string) {
	for _, p := range packages {
		if slices.ContainsFunc(r.without, func(top string) bool { return within(p, top) }) {
			broken = append(broken, fmt.Sprintf("%s must not be made of %s: %s", r.program, p, r.why))
		}
	}
	return broken
}

// sentences counts the sentences of a package's documentation: full stops, question and exclamation marks that end
// a word.
func sentences(doc string) int {
	n := 0
	for _, word := range strings.Fields(doc) {
		if last := word[len(word)-1]; last == '.' || last == '?' || last == '!' || strings.HasSuffix(word, ".)") {
			n++
		}
	}
	return n
}
