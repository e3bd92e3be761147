package identity

import "net/http"

// absent is the path of services that do not exist, compute and volumes. They are in the
// catalogue because "openstack quota show" of the releases before 6.3 looks their
// addresses up first, and fails where they have none, and Ansible's module quota does so
// too. All that is answered there is that a project has no quotas, and that those are
// forgotten.
const absent = "/v3/absent/"

func (s *Service) serveAbsent(mux *http.ServeMux) {
	for service, id := range map[string]string{"compute": "v2.1", "volumev3": "v3.0"} {
		mux.HandleFunc("GET "+absent+service, func(w http.ResponseWriter, r *http.Request) {
			self := s.base(r) + absent + service + "/"
			answer(w, http.StatusOK, map[string]any{"version": map[string]any{
				"id": id, "status": "CURRENT", "links": []map[string]string{{"rel": "self", "href": self}},
			}})
		})
	}
	mux.HandleFunc("GET "+absent+"{service}/os-quota-sets/{project}",
		s.known(func(w http.ResponseWriter, r *http.Request, _ grant) {
			answer(w, http.StatusOK, map[string]any{"quota_set": map[string]string{"id": r.PathValue("project")}})
		}))
	mux.HandleFunc("DELETE "+absent+"{service}/os-quota-sets/{project}", s.known(
		func(w http.ResponseWriter, _ *http.Request, _ grant) { w.WriteHeader(http.StatusAccepted) },
	))
	mux.HandleFunc("GET "+absent+"{service}/os-quota-sets/{project}/{of}",
		s.known(func(w http.ResponseWriter, r *http.Request, _ grant) {
			answer(w, http.StatusOK, map[string]any{"quota_set": map[string]string{"id": r.PathValue("project")}})
		}))
}
