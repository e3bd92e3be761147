package sdn

import "context"

// A Client is the caller that a server makes a call for.
type Client struct {
	// Admin says that the client may set quotas. Default quotas do not limit it.
	Admin bool
}

type clientKey struct{}

// WithClient marks the calls of a server for one of its clients. Such a call sees the
// Keys of every project, and the projects that it names do not become the server's own.
func WithClient(ctx context.Context, c Client) context.Context {
	return context.WithValue(ctx, clientKey{}, c)
}

// ClientOf returns the client that a call is made for, and whether there is one.
func ClientOf(ctx context.Context) (Client, bool) {
	c, ok := ctx.Value(clientKey{}).(Client)
	return c, ok
}

type projectsKey struct{}

// WithProjects says that the Keys of these projects are the caller's, as if it had named
// them in earlier calls.
func WithProjects(ctx context.Context, projects []string) context.Context {
	return context.WithValue(ctx, projectsKey{}, projects)
}

// ProjectsOf returns the projects of WithProjects.
func ProjectsOf(ctx context.Context) []string {
	projects, _ := ctx.Value(projectsKey{}).([]string)
	return projects
}
