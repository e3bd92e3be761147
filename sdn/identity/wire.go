package identity

import (
	"encoding/json"
	"net/http"
	"time"
)

// The one domain.
const (
	domainID   = "default"
	domainName = "Default"
	region     = "RegionOne"
)

const timeForm = "2006-01-02T15:04:05.000000Z"

type ref struct {
	ID     string `json:"id"`
	Name   string `json:"name"`
	Domain *ref   `json:"domain,omitempty"`
}

var domain = &ref{ID: domainID, Name: domainName}

// matches reports whether a client's words name the domain; what it leaves out does.
func (r *ref) matches() bool {
	return r == nil || (r.ID == "" || r.ID == domainID) && (r.Name == "" || r.Name == domainName)
}

type endpoint struct {
	ID        string `json:"id"`
	Interface string `json:"interface"`
	Region    string `json:"region"`
	RegionID  string `json:"region_id"`
	URL       string `json:"url"`
}

type service struct {
	ID        string     `json:"id"`
	Type      string     `json:"type"`
	Name      string     `json:"name"`
	Endpoints []endpoint `json:"endpoints"`
}

// LoadBalancing is the path of the API of load balancers, which the network service serves too.
const LoadBalancing = "/load-balancer"

// catalog is where the services are, at the address that the client has for this one.
func catalog(base string) []service {
	all := []service{{ID: "network", Type: "network", Name: "neutron"}, {
		ID: "identity", Type: "identity", Name: "keystone",
	},
		{ID: "load-balancer", Type: "load-balancer", Name: "octavia"},
		{ID: "compute", Type: "compute", Name: "none"}, {ID: "volumev3", Type: "volumev3", Name: "none"}}
	for i, url := range []string{
		base, base + "/v3", base + LoadBalancing, base + absent + "compute", base + absent + "volumev3",
	} {
		for _, face := range []string{"public", "internal", "admin"} {
			all[i].Endpoints = append(all[i].Endpoints, endpoint{all[i].ID + "-" + face, face, region, region, url})
		}
	}
	return all
}

type userView struct {
	ref
	PasswordExpiresAt *string `json:"password_expires_at"`
}

type tokenView struct {
	Methods   []string  `json:"methods"`
	User      userView  `json:"user"`
	AuditIDs  []string  `json:"audit_ids"`
	ExpiresAt string    `json:"expires_at"`
	IssuedAt  string    `json:"issued_at"`
	Project   *ref      `json:"project"`
	IsDomain  bool      `json:"is_domain"`
	Roles     []ref     `json:"roles"`
	Catalog   []service `json:"catalog,omitempty"`
}

func viewOf(g grant) tokenView {
	view := tokenView{
		Methods: g.methods, User: userView{ref: ref{g.Name, g.Name, domain}}, AuditIDs: []string{g.audit},
		ExpiresAt: g.expires.UTC().Format(timeForm), IssuedAt: g.issued.UTC().Format(timeForm),
		Project: &ref{g.Project, g.Project, domain}, Roles: roles(g.Role),
	}
	if g.audit == "" {
		view.AuditIDs = []string{g.Credential}
	}
	return view
}

// roles are those that a role implies too, as Keystone has it.
func roles(r Role) (all []ref) {
	for i, role := range Roles {
		if role == r {
			for _, implied := range Roles[i:] {
				all = append(all, ref{ID: string(implied), Name: string(implied)})
			}
		}
	}
	return all
}

type projectView struct {
	ID          string         `json:"id"`
	Name        string         `json:"name"`
	DomainID    string         `json:"domain_id"`
	ParentID    string         `json:"parent_id"`
	Description string         `json:"description"`
	Enabled     bool           `json:"enabled"`
	IsDomain    bool           `json:"is_domain"`
	Tags        []string       `json:"tags"`
	Options     map[string]any `json:"options"`
	Links       links          `json:"links"`
}

type links struct {
	Self     string  `json:"self"`
	Next     *string `json:"next,omitempty"`
	Previous *string `json:"previous,omitempty"`
}

func projectOf(name, base string) projectView {
	return projectView{
		ID: name, Name: name, DomainID: domainID, ParentID: domainID, Enabled: true, Tags: []string{},
		Options: map[string]any{},
		Links:   links{Self: base + "/v3/projects/" + name},
	}
}

type version struct {
	ID         string              `json:"id"`
	Status     string              `json:"status"`
	Updated    string              `json:"updated,omitempty"`
	Links      []map[string]string `json:"links"`
	MediaTypes []map[string]string `json:"media-types,omitempty"`
}

func versionAt(url string) version {
	return version{
		ID: "v3.14", Status: "stable", Updated: time.Date(2020, 4, 7, 0, 0, 0, 0, time.UTC).Format("2006-01-02T15:04:05Z"),
		Links:      []map[string]string{{"rel": "self", "href": url}},
		MediaTypes: []map[string]string{{"base": "application/json", "type": "application/vnd.openstack.identity-v3+json"}},
	}
}

func answer(w http.ResponseWriter, status int, body any) {
	data, err := json.Marshal(body)
	if err != nil {
		http.Error(w, "the answer cannot be written", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Vary", "X-Auth-Token")
	w.WriteHeader(status)
	_, _ = w.Write(append(data, '\n'))
}

type problem struct {
	Code    int    `json:"code"`
	Title   string `json:"title"`
	Message string `json:"message"`
}

// Refuse answers with an error as Keystone words it, to 401 with where tokens are got.
func (s *Service) Refuse(w http.ResponseWriter, r *http.Request, status int, message string) {
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Keystone uri="`+s.base(r)+`/v3"`)
		if message == "" {
			message = "The request you have made requires authentication."
		}
	}
	answer(w, status, map[string]problem{"error": {status, http.StatusText(status), message}})
}

// ServeVersions answers GET / where one address serves both the network API and this one:
// a list of the versions of both, in the form of Neutron's, in which clients of either
// look for a version that they know.
func (s *Service) ServeVersions(w http.ResponseWriter, r *http.Request) {
	base := s.base(r)
	network := version{ID: "v2.0", Status: "CURRENT", Links: []map[string]string{{"rel": "self", "href": base + "/v2.0/"}}}
	answer(w, http.StatusOK, map[string][]version{"versions": {network, versionAt(base + "/v3/")}})
}
