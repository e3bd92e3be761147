package identity

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kuryr/kuryr/internal/atomicfile"
)

const (
	keySize  = 32
	prefix   = "k1." // of what is issued: the form's version
	maxToken = 1024
)

// LoadKey reads the key from a file, or makes one there at the first start. The file must
// be its owner's alone.
func LoadKey(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return makeKey(path)
	case err != nil:
		return nil, fmt.Errorf("key of tokens: %w", err)
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf(
			"key of tokens: %s has mode %04o, so others may know it: delete it, a new one is made", path,
			info.Mode().Perm(),
		)
	}
	key, err := os.ReadFile(path)
	if err == nil && len(key) != keySize {
		err = fmt.Errorf("%s has %d bytes, not %d: delete it, a new one is made", path, len(key), keySize)
	}
	if err != nil {
		return nil, fmt.Errorf("key of tokens: %w", err)
	}
	return key, nil
}

func makeKey(path string) ([]byte, error) {
	key := make([]byte, keySize)
	_, err := rand.Read(key)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err == nil {
		err = atomicfile.WriteFile(path, key, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("key of tokens: %w", err)
	}
	return key, nil
}

// claim is what an issued token says. It names a credential of the token file and nothing
// that the file decides.
type claim struct {
	Credential string   `json:"c"`
	Project    string   `json:"p"`
	Issued     int64    `json:"i"` // seconds of Unix time
	Expires    int64    `json:"x"`
	Audit      string   `json:"a"`
	Methods    []string `json:"m"`
}

func (c claim) issued() time.Time  { return time.Unix(c.Issued, 0).UTC() }
func (c claim) expires() time.Time { return time.Unix(c.Expires, 0).UTC() }

// signer is the key.
type signer []byte

func (k signer) sum(text string) []byte {
	mac := hmac.New(sha256.New, k)
	_, _ = mac.Write([]byte(text))
	return mac.Sum(nil)
}

var encoding = base64.RawURLEncoding.Strict()

func (k signer) seal(c claim) (string, error) {
	data, err := json.Marshal(c)
	if err != nil {
		return "", err
	}
	text := prefix + encoding.EncodeToString(data)
	return text + "." + encoding.EncodeToString(k.sum(text)), nil
}

// open reads a token that this key has signed.
func (k signer) open(token string) (claim, bool) {
	at := strings.LastIndexByte(token, '.')
	if len(token) > maxToken || !strings.HasPrefix(token, prefix) || at < len(prefix) {
		return claim{}, false
	}
	sum, err := encoding.DecodeString(token[at+1:])
	if err != nil || !hmac.Equal(sum, k.sum(token[:at])) {
		return claim{}, false
	}
	data, err := encoding.DecodeString(token[len(prefix):at])
	if err != nil {
		return claim{}, false
	}
	var c claim
	return c, json.Unmarshal(data, &c) == nil
}
