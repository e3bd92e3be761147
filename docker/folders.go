package docker

import (
	"encoding/json"
	"path/filepath"
	"time"

	"github.com/kuryr/kuryr/internal/jsonstore"
	"github.com/kuryr/kuryr/internal/sortslice"
)

// What a Driver keeps on the disk, and how a command that is not its process reads it.

const endpointsFolder, owedFolder, begunFolder = "endpoints", "owed", "begun"

// folderIn is a folder of a folder, "" of none.
func folderIn(dir, name string) string {
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, name)
}

// Folders are those that a Driver with these two keeps records in, or an earlier version did:
// files of JSON.
func Folders(stateDir, runDir string) []string {
	return []string{folderIn(stateDir, owedFolder), folderIn(stateDir, marksFolder), folderIn(stateDir, begunFolder), folderIn(runDir, endpointsFolder)}
}

// Debt is a clean-up that the engine asked for and that is done when the SDN is back, or that of a port which the SDN may yet make.
type Debt struct {
	Method string          // such as NetworkDriver.DeleteEndpoint
	Body   json.RawMessage // as the engine sent it
	At     time.Time
}

// Debts are what the Kuryr with this state folder owes, read from there, the oldest first.
func Debts(stateDir string) ([]Debt, error) {
	all, err := jsonstore.Load[Debt](jsonstore.Shared(folderIn(stateDir, owedFolder)))
	list := []Debt{}
	for _, d := range all {
		list = append(list, d)
	}
	sortslice.Func(list, func(a, b Debt) int { return a.At.Compare(b.At) })
	return list, err
}

// Notes returns what calls of the engine are about to make, by record, from the state folder.
func Notes(stateDir string) (map[string]json.RawMessage, error) {
	return jsonstore.Load[json.RawMessage](jsonstore.Shared(folderIn(stateDir, begunFolder)))
}
