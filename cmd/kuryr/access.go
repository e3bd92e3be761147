//go:build linux

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kuryr/kuryr/internal/tlsfiles"
	"github.com/kuryr/kuryr/sdn/identity"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func (a *app) tokenCommand() *cobra.Command {
	return &cobra.Command{
		Use: "token PROJECT ROLE [NAME]", Short: "Make a line of the token file with a new token",
		Long: `Print a line for the token file (sdn.tokens) with a new random token, which may do in the project what the role says: admin, member or
reader. The name is for the log. The file must be root's, with mode 0600; the running kuryr reads it again when it changes.`,
		Example: "  (umask 077; kuryr sdn token demo member ci >> /etc/kuryr/tokens)",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 2 && len(args) != 3 {
				return usageError{fmt.Errorf("%s: want a project, a role and perhaps a name, not %d arguments", c.CommandPath(), len(args))}
			}
			return nil
		},
		ValidArgsFunction: completeRole,
		RunE: func(_ *cobra.Command, args []string) error {
			name := ""
			if len(args) == 3 {
				name = args[2]
			}
			line, _, err := identity.TokenLine(args[0], identity.Role(args[1]), name)
			if err != nil {
				return usageError{err}
			}
			_, err = fmt.Fprintln(a.out, line)
			return err
		},
	}
}

func (a *app) passwordCommand() *cobra.Command {
	return &cobra.Command{
		Use: "password NAME PROJECT ROLE", Short: "Make a line of the token file for a user with a password", Args: exactly(3, "a name, a project and a role"),
		Long: `Read a password of 8 to 72 bytes from standard input and print a line for the token file (sdn.tokens) with its hash, by bcrypt. A user of
several projects has such a line for each, with the same hash; the first is the project of a client that names none. The file must be root's,
with mode 0600; the running kuryr reads it again when it changes.`,
		Example: "  (umask 077; kuryr sdn password alice demo member >> /etc/kuryr/tokens)",
		ValidArgsFunction: func(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			return completeRole(c, args[min(1, len(args)):], word)
		},
		RunE: func(_ *cobra.Command, args []string) error {
			password, err := a.readPassword(os.Stdin)
			if err != nil {
				return err
			}
			line, err := identity.UserLine(args[0], args[1], identity.Role(args[2]), password)
			if err != nil {
				return usageError{err}
			}
			_, err = fmt.Fprintln(a.out, line)
			return err
		},
	}
}

func completeRole(_ *cobra.Command, args []string, _ string) (words []string, _ cobra.ShellCompDirective) {
	if len(args) == 1 {
		for _, r := range identity.Roles {
			words = append(words, string(r))
		}
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

// readPassword reads a line, which a terminal does not show.
func (a *app) readPassword(from *os.File) (string, error) {
	if state, err := unix.IoctlGetTermios(int(from.Fd()), unix.TCGETS); err == nil {
		silent := *state
		silent.Lflag &^= unix.ECHO
		if err := unix.IoctlSetTermios(int(from.Fd()), unix.TCSETS, &silent); err != nil {
			return "", fmt.Errorf("the terminal cannot be silenced: %w", err)
		}
		defer func() {
			_ = unix.IoctlSetTermios(int(from.Fd()), unix.TCSETS, state)
			_, _ = fmt.Fprintln(a.err)
		}()
		_, _ = fmt.Fprint(a.err, "Password: ")
	}
	line, err := bufio.NewReader(io.LimitReader(from, 1<<10)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("read the password: %w", err)
	}
	return strings.TrimRight(line, "\r\n"), nil
}

func (a *app) apiCertificatesCommand() *cobra.Command {
	var hosts []string
	c := &cobra.Command{
		Use: "certificates DIR", Short: "Make a certificate for the API", Args: exactly(1, "one folder"),
		Long: `Make in a folder an authority and a certificate for the API at sdn.listen, and say how to use them. Keys are ECDSA P-256 and readable by
their owner alone; the authority holds for ten years, the certificate for 825 days. Files that are there are never replaced.`,
		Example: "  kuryr sdn certificates /etc/kuryr/tls --host sdn.example.org --host 192.0.2.1",
		RunE: func(_ *cobra.Command, args []string) error {
			dir, err := filepath.Abs(args[0])
			if err != nil {
				return err
			}
			if len(hosts) == 0 || slices.Contains(hosts, "") {
				return usageError{errors.New("--host: want the address or name that clients call this machine by, such as 192.0.2.1")}
			}
			if err := tlsfiles.IssueServer(dir, hosts, time.Now()); err != nil {
				return err
			}
			in := func(name string) string { return filepath.Join(dir, name) }
			_, _ = fmt.Fprintf(a.out, `settings of kuryr:
  sdn:
    listen: %s
    tls_cert: %s
    tls_key: %s
clients: OS_AUTH_URL=https://%s/v3 OS_CACERT=%s
%s signs further certificates; keep it elsewhere.
`, net.JoinHostPort(hosts[0], apiPort), in(tlsfiles.ServerFile), in(tlsfiles.ServerKeyFile),
				net.JoinHostPort(hosts[0], apiPort), in(tlsfiles.CAFile), in(tlsfiles.CAKeyFile))
			return nil
		},
	}
	c.Flags().StringSliceVar(&hosts, "host", nil, "`address or name` that clients call this machine by; may be given again")
	return c
}

// apiPort is Neutron's.
const apiPort = "9696"
