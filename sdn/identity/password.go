package identity

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/crypto/bcrypt"
)

const cost = 11

// decoys are the hashes that stand for users that are not there, by cost.
var decoys sync.Map

// decoy returns one that takes as long to check as a user's of this cost.
func decoy(cost int) []byte {
	cost = max(cost, bcrypt.MinCost)
	if hash, ok := decoys.Load(cost); ok {
		return hash.([]byte)
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(rand.Text()), cost)
	if err != nil {
		panic(err) // only a cost or a length that cannot be would do it
	}
	kept, _ := decoys.LoadOrStore(cost, hash)
	return kept.([]byte)
}

// UserLine is the line of a user with a password of 8 to 72 bytes.
func UserLine(name, project string, role Role, password string) (string, error) {
	id := Identity{Name: name}
	if err := id.place(project, string(role)); err != nil {
		return "", err
	}
	if len(password) < 8 || len(password) > maxPassword {
		return "", fmt.Errorf("the password has %d bytes: want 8 to %d", len(password), maxPassword)
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(password), cost)
	if err != nil {
		return "", errors.New("the password cannot be hashed")
	}
	return fmt.Sprintf("user %s %s %s %s", name, project, role, hash), nil
}

// TokenLine is the line of a new token, of 256 random bits. The name may be empty.
func TokenLine(project string, role Role, name string) (line, secret string, err error) {
	id := Identity{Name: "none"}
	if name != "" {
		id.Name = name
	}
	if err := id.place(project, string(role)); err != nil {
		return "", "", err
	}
	var bits [32]byte
	if _, err := rand.Read(bits[:]); err != nil {
		return "", "", err
	}
	secret = base64.RawURLEncoding.EncodeToString(bits[:])
	line = fmt.Sprintf("token %s %s %s", secret, project, role)
	if name != "" {
		line += " " + name
	}
	return line, secret, nil
}
