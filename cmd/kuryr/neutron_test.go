//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/internal/config"
)

func TestKeptInstallation(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	first, err := keptInstallation(dir)
	if err != nil || len(first) != 16 {
		t.Fatalf("got %q, %v", first, err)
	}
	if again, err := keptInstallation(dir); err != nil || again != first {
		t.Errorf("the second start is installation %q (%v), the first was %q", again, err, first)
	}
	for _, spoilt := range []string{"", "Not A Name", strings.Repeat("a", 80)} {
		if err := os.WriteFile(filepath.Join(dir, installationFile), []byte(spoilt), 0o600); err != nil {
			t.Fatal(err)
		}
		if id, err := keptInstallation(dir); err == nil || !strings.Contains(err.Error(), installationFile) {
			t.Errorf("%q is taken for installation %q, %v", spoilt, id, err)
		}
	}
}

// The secret of the peer's file is the one that the way of authentication needs.
func TestNeutronSecret(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		authType, credential         string
		password, application, token string
	}{
		{authType: "", password: "s"},
		{authType: "password", password: "s"},
		{authType: "token", token: "s"},
		{authType: "application_credential", credential: "id", application: "s"},
		{authType: "", credential: "id", application: "s"},
	} {
		c := config.Default()
		c.Neutron.AuthType = tc.authType
		c.Neutron.Credentials = config.Credentials{ApplicationCredentialID: tc.credential, Secret: "s"}
		a := neutronConfig(c, "i").Auth
		if a.Password != tc.password || a.ApplicationCredentialSecret != tc.application || a.Token != tc.token {
			t.Errorf("%+v: the secret is used otherwise", tc)
		}
	}
}
