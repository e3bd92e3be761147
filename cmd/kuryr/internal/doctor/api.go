package doctor

import (
	"fmt"
	"time"
)

// APIFacts are what the SDN's API over TCP stands on.
type APIFacts struct {
	Listen    string // of the configuration; "" is nowhere
	Cert      string // the certificate's file
	CertErr   error  // certificate and key cannot be read, or do not match
	Until     time.Time
	Entries   int   // lines of the token file
	TokensErr error // it cannot be read, or is spoilt
	Now       time.Time
}

// soon is how long before a certificate's end it is time to make another.
const soon = 30 * 24 * time.Hour

// API judges what clients of the SDN's API over TCP need.
func API(a APIFacts) []Finding {
	f := findings{check: "API"}
	if a.Listen == "" {
		return f.orOK("the SDN's API is not served over TCP")
	}
	const another = "make another (`kuryr sdn certificates`) and put it in its place; it is read again when it changes"
	until := a.Until.UTC().Format(time.DateOnly)
	switch {
	case a.CertErr != nil:
		f.add(
			Problem, "clients cannot connect by TLS: "+a.CertErr.Error(),
			"`kuryr sdn certificates` makes such files; sdn.tls_cert and sdn.tls_key say where they are",
		)
	case a.Now.After(a.Until):
		f.add(Problem, fmt.Sprintf("the certificate %s has expired on %s: clients refuse it", a.Cert, until), another)
	case a.Now.Add(soon).After(a.Until):
		f.add(Warning, fmt.Sprintf("the certificate %s expires on %s", a.Cert, until), another)
	}
	switch {
	case a.TokensErr != nil:
		f.add(
			Problem, "the token file is not taken over: "+a.TokensErr.Error(),
			"correct it; `kuryr sdn token` and `kuryr sdn password` make its lines, sdn.tokens says "+
				"where it is",
		)
	case a.Entries == 0:
		f.add(
			Warning, "the token file is empty: nobody is let in",
			"`kuryr sdn token` and `kuryr sdn password` make its lines",
		)
	}
	return f.orOK(fmt.Sprintf("the certificate holds until %s; tokens and users in the token file: %d", until, a.Entries))
}
