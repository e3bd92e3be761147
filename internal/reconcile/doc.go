// Package reconcile keeps what a front end was asked for, in one table per daemon, and makes
// a target agree with it.
//
// A [Kind] is a set of rows that one [Target] handles: endpoints, pods, attachments. A row is
// an intent. [Kind.Set] stores it before the target's first side effect, and [Kind.Remove]
// stores the deletion before the caller is answered, so that a kill at any point loses neither.
// What could not be finished is repeated by [Store.Run], with one backoff and one budget for
// all kinds.
//
// The rules, and the files that implement them:
//
//   - store.go: rows, claims on exclusive resources, owners that outlive their children.
//   - table.go: the rows of each kind, those that are unfinished, and those that share a value.
//   - set.go: Set commits before it acts. A failed Set deletes what it created, or restores
//     the previous intent of an existing row.
//   - remove.go: Remove commits, deletes children first, and makes one attempt within the
//     deadline. An unconfirmed create is looked for until OrphanTTL has passed.
//   - queue.go: the retries, in a queue per kind, so that a target that hangs holds up no other.
//   - orphans.go: a row that the engine no longer lists becomes a deletion after two complete
//     lists, GracePeriod apart. Compare makes a list after an event of the engine.
//   - import.go: an object without a row becomes a row, and follows the same rule.
//   - journal.go: the bbolt file.
//
// The package must not know what rows are about, and it must not call an engine, an SDN or the
// kernel except through Target and Engine. A Target never retries, sleeps, caches or stores.
package reconcile
