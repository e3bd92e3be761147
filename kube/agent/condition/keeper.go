package condition

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kuryr/kuryr/internal/backoff"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
)

// Reasons of the condition.
const (
	ReasonReady   = "KuryrReady"
	ReasonStarted = v1.ReasonNodeStarting // the daemon does not know its ports yet, and nothing of the cluster is in the kernel
	ReasonAgain   = "KuryrRestarting"     // it does not know them yet either, and what the one before brought into the kernel is there
	ReasonStopped = "KuryrStopped"        // the daemon has ended
	ReasonRaven   = "KuryrRaven"          // the daemon has ended, and Raven gives the node's pods their ports
)

// Bounds of a write: how long one may take, how long until the next after a failure, and how long the last may take, which holds up the daemon's end.
const (
	writeTimeout = 30 * time.Second
	firstRetry   = 200 * time.Millisecond
	lastRetry    = 30 * time.Second
	lastWrite    = 3 * time.Second
)

// Keeper keeps one Node's condition.
type Keeper struct {
	api  client.Client
	node string
	log  *slog.Logger
	wake chan struct{} // holds one element where something may differ

	mu      sync.Mutex
	known   bool                 // the Node has been seen
	uid     types.UID            // of the Node
	version string               // of the Node, when it had the condition
	is      corev1.NodeCondition // as the API tells it
	want    corev1.NodeCondition
}

// New makes a Keeper, which writes nothing until Run and until it has seen the Node. The client's scheme has the core types. A nil log is none.
func New(api client.Client, node string, log *slog.Logger) *Keeper {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Keeper{
		api: api, node: node, log: log, wake: make(chan struct{}, 1),
		want: condition(false, ReasonStarted, "kuryr node does not know the node's ports yet"),
	}
}

func condition(available bool, reason, message string) corev1.NodeCondition {
	c := corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue, Reason: reason, Message: message}
	if available {
		c.Status = corev1.ConditionFalse
	}
	return c
}

// Set says whether the network is there, and why in one word and in a sentence.
func (k *Keeper) Set(available bool, reason, message string) {
	k.mu.Lock()
	k.want = condition(available, reason, message)
	k.mu.Unlock()
	k.look()
}

func (k *Keeper) look() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Run keeps the condition until ctx ends, and says then that the network is not there, unless an administrator has made the node Raven's (v1.LabelClaimant). An API server that is away is waited for, but not at the end.
func (k *Keeper) Run(ctx context.Context) {
	k.write(ctx)
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWrite)
	defer cancel()
	if k.ravens(last) {
		k.Set(true, ReasonRaven, "kuryr node has ended; Raven gives the node's pods their ports")
	} else {
		k.Set(false, ReasonStopped, "kuryr node has ended")
	}
	if err := k.tell(last); err != nil {
		k.log.Warn("the node still says that its network is there", "err", err)
	}
}

// ravens tells whether the node needs no daemon. It is asked, since the label may have been set a moment before the daemon was ended.
func (k *Keeper) ravens(ctx context.Context) bool {
	var n corev1.Node
	err := k.api.Get(ctx, client.ObjectKey{Name: k.node}, &n)
	return err == nil && n.Labels[v1.LabelClaimant] == v1.ClaimantRaven
}

// See takes in the Node as the API server tells it. Whoever watches it calls this, at first and whenever it has changed, so that one watch of it is enough; other Nodes are passed over.
func (k *Keeper) See(n *corev1.Node) {
	if n.Name == k.node && k.take(n) {
		k.look()
	}
}

// take keeps what the Node says. A version older than the known one is ignored: a watch can be behind
// the answer to a write, and the answer behind the watch.
func (k *Keeper) take(n *corev1.Node) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.known && n.UID == k.uid {
		order, err := resourceversion.CompareResourceVersion(n.ResourceVersion, k.version)
		if err == nil && order < 0 {
			return false
		}
	}
	k.known, k.uid, k.version, k.is = true, n.UID, n.ResourceVersion, corev1.NodeCondition{}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeNetworkUnavailable {
			k.is = c
		}
	}
	return true
}

// write tells the API server again and again until it knows, and whenever something has changed.
func (k *Keeper) write(ctx context.Context) {
	wait := backoff.Backoff{Min: firstRetry, Max: lastRetry}
	for {
		var retry <-chan time.Time
		one, cancel := context.WithTimeout(ctx, writeTimeout)
		err := k.tell(one)
		cancel()
		if err != nil && ctx.Err() == nil {
			k.log.WarnContext(ctx, "the node's condition cannot be written; it is tried again", "err", err)
			retry = time.After(wait.Next())
		} else {
			wait.Reset()
		}
		select {
		case <-ctx.Done():
			return
		case <-k.wake:
		case <-retry:
		}
	}
}

// tell writes the condition where the Node says another.
func (k *Keeper) tell(ctx context.Context) error {
	k.mu.Lock()
	want, is, known := k.want, k.is, k.known
	k.mu.Unlock()
	if !known || want.Status == is.Status && want.Reason == is.Reason && want.Message == is.Message {
		return nil
	}
	now := metav1.Now()
	want.LastHeartbeatTime, want.LastTransitionTime = now, now
	if want.Status == is.Status {
		want.LastTransitionTime = is.LastTransitionTime
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{want}}})
	if err != nil {
		return fmt.Errorf("condition: %w", err)
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: k.node}}
	// Conditions are merged by their types.
	if err := k.api.Status().Patch(ctx, n, client.RawPatch(types.StrategicMergePatchType, patch)); err != nil {
		return client.IgnoreNotFound(err)
	}
	k.take(n)
	return nil
}
