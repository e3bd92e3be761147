package sdn

import "context"

type unawaited struct{}

// Unawaited marks what is asked of a Provider with the context as work that nobody waits for. Nothing is done otherwise for that; but a provider that can
// tells it to its SDN, so that who counts what a call costs can leave it out.
func Unawaited(ctx context.Context) context.Context { return context.WithValue(ctx, unawaited{}, true) }

// IsUnawaited tells whether Unawaited has marked the context.
func IsUnawaited(ctx context.Context) bool { return ctx.Value(unawaited{}) != nil }
