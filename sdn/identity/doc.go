// Package identity decides who may use the SDN's API. It has three parts.
//
// The gate stands before the API. It finds the client of a request, refuses clients without a
// token and clients that ask too often, and counts the answers. It owns the bounds of time and
// rate of a request, and the numbers of requests.
//
// The Service is the part of OpenStack's identity API v3 that clients of a network service need:
// it issues tokens, and shows projects and the catalogue. What it issues is signed and not
// stored, so a restart ends no token. The holder of a token is looked up in the token file at
// each use, so a line that is removed from the file ends its tokens immediately. A project's ID
// is its name, and so is a user's. There is one domain, Default, with the ID default. A token of
// the file may be used directly, or exchanged by the method token.
//
// The token file has tokens, and users with passwords, each with a project and a role. A line
// has one of these forms; empty lines and lines that begin with # are ignored:
//
//	token SECRET PROJECT ROLE [NAME]
//	user NAME PROJECT ROLE HASH
//
// SECRET is 16 to 255 printable characters. PROJECT and NAME are 1 to 64 of a-z, A-Z, 0-9 and any
// of ". _ @ -". ROLE is admin, member or reader; there is no default. HASH is a password's, by
// bcrypt. A user has a line for each of its projects, all with the same HASH. The first is the
// project of a client that names none.
//
// The package must not know what the API serves, nor what a role may do. It never logs or
// returns a secret.
//
// Source: https://docs.openstack.org/api-ref/identity/v3/
package identity
