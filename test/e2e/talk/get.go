package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
)

// longest is how much of an answer is printed.
const longest = 1 << 20

// get prints what an HTTPS server answers that is certified by the authority in a file. What is no success is an error.
func get(args []string) error {
	if len(args) != 2 {
		usage()
	}
	authority, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authority) {
		return fmt.Errorf("%s has no certificate", args[0])
	}
	client := http.Client{Timeout: 5 * second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
	}}
	resp, err := client.Get(args[1])
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, longest))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %s", resp.Status)
	}
	fmt.Printf("%s\n", body)
	return err
}
