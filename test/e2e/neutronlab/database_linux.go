package neutronlab

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/kuryr/kuryr/internal/atomicfile"
	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// databaseSocket is where MariaDB answers on the central host, and only there.
const databaseSocket = "/run/mysqld.sock"

// databaseFlags choose speed where a machine that loses power would lose the database: it is a test's.
var databaseFlags = []string{
	"--no-defaults", "--user=root", "--skip-networking", "--skip-log-bin", "--skip-name-resolve",
	"--socket=" + databaseSocket, "--pid-file=/run/mysqld.pid",
	"--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0",
	"--innodb-buffer-pool-size=128M", "--innodb-log-file-size=16M", "--performance-schema=OFF",
	"--max-connections=300", "--character-set-server=utf8mb3"}

// database is the SQLAlchemy URL of one of MariaDB's databases.
func database(name string) string {
	return "mysql+pymysql://root@localhost/" + name + "?unix_socket=" + databaseSocket + "&charset=utf8"
}

func (l *Lab) databaseDir() string { return filepath.Join(l.Central.Dir(), "mysql") }

// startDatabase starts MariaDB with Neutron's (and Keystone's) tables. The migrations
// that make them take longer than all else, so their outcome is kept, by the versions of
// all that had a part in it.
func (l *Lab) startDatabase(ctx context.Context) error {
	cache, err := l.databaseCache(ctx)
	if err != nil {
		return err
	}
	if _, err := os.Stat(cache); err == nil {
		if err := run(ctx, l.Central, []string{"tar", "-xzf", cache, "-C", l.Central.Dir()}); err != nil {
			return err
		}
		return l.runDatabase(ctx)
	}
	err = run(ctx, l.Central, []string{
		"mariadb-install-db", "--no-defaults", "--user=root", "--datadir=" + l.databaseDir(),
		"--auth-root-authentication-method=normal", "--skip-test-db", "--innodb-log-file-size=16M"})
	if err != nil {
		return err
	}
	if err := l.runDatabase(ctx); err != nil {
		return err
	}
	if err := l.migrateNeutron(ctx); err != nil {
		return err
	}
	if l.opts.identities() {
		if err := l.migrateKeystone(ctx); err != nil {
			return err
		}
	}
	if l.opts.Octavia {
		if err := l.migrateOctavia(ctx); err != nil {
			return err
		}
	}
	if err := l.database.Stop(syscall.SIGTERM, stopLimit); err != nil {
		return err
	}
	if err := l.keepDatabase(ctx, cache); err != nil {
		return fmt.Errorf("keep the database for the next lab: %w", err)
	}
	return l.runDatabase(ctx)
}

func (l *Lab) runDatabase(ctx context.Context) (err error) {
	argv := append(append([]string{"mariadbd"}, databaseFlags...), "--datadir="+l.databaseDir())
	l.database, err = l.Central.StartService(ctx, "mariadb", nil, argv, listens(l.Central, "unix", databaseSocket))
	return err
}

func (l *Lab) createDatabase(ctx context.Context, name string) error {
	return run(ctx, l.Central, []string{
		"mariadb", "--no-defaults", "-uroot", "-S", databaseSocket, "-e",
		"CREATE DATABASE " + name + " CHARACTER SET utf8mb3",
	})
}

// databaseCache is the file that keeps the database, whether it is there or not.
func (l *Lab) databaseCache(ctx context.Context) (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = "/var/cache" // a service has no home folder
	}
	packages := []string{"mariadb-server", "python3-neutron"}
	if l.opts.identities() {
		packages = append(packages, "python3-keystone")
	}
	extra := ""
	if l.opts.Octavia {
		packages = append(packages, "python3-octavia")
		extra = octaviaConf
	}
	out, err := exec.CommandContext(
		ctx, "dpkg-query", append([]string{"-W", "-f=${Package} ${Version}\n"}, packages...)...,
	).Output()
	if err != nil {
		return "", fmt.Errorf("what a lab needs is not installed (hack/deps.sh neutron): %w", err)
	}
	sum := sha256.Sum256([]byte(
		string(out) + strings.Join(databaseFlags, " ") + neutronConf + keystoneConf +
			keystoneServe + seedEdition + extra,
	))
	return filepath.Join(dir, "kuryr", fmt.Sprintf("neutron-db-%x.tar.gz", sum[:6])), nil
}

func (l *Lab) keepDatabase(ctx context.Context, cache string) error {
	if err := os.MkdirAll(filepath.Dir(cache), 0o755); err != nil {
		return err
	}
	return atomicfile.Write(cache, 0o600, func(f *os.File) error {
		return run(ctx, l.Central, []string{"tar", "-C", l.Central.Dir(), "-czf", f.Name(), "mysql"})
	})
}

// writeFile writes a file of the central host's folder and returns its path.
func writeFile(h *privatehost.Host, name, text string) (string, error) {
	path := filepath.Join(h.Dir(), name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", err
	}
	return path, os.WriteFile(path, []byte(text), 0o600)
}
