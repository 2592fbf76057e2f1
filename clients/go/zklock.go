// Package zklock holds locks of a django-zklock coordinator. It needs Go 1.21 or newer.
package zklock

import (
	"context"
	cryptorand "crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/rand"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/django-zklock/django-zklock/clients/go/pb"
)

var (
	ErrBusy    = errors.New("the lock has another holder")
	ErrTimeout = errors.New("the lock still had another holder when the wait was over")
	ErrLost    = errors.New("the lock was lost")
	errClosed  = errors.New("the client is closed")
)

const (
	replyTimeout  = 5 * time.Second // for the coordinators to answer, apart from the wait for the lock
	shortestPause = 100 * time.Millisecond
	longestPause  = 500 * time.Millisecond
	forever       = 10 * 365 * 24 * time.Hour // a longer wait has no limit, as sums would overflow
	releases      = 10                        // tries: a coordinator that is gone for longer has ended its leases
	// A call that ends after such a wait in the queue is sent again: coordinators bound waits, and are upgraded.
	longWait = time.Second
	// If a lease gets no answer for so long, nor for a third of its time, its connection hangs: the packets of a
	// coordinator that restarts elsewhere may vanish, or a proxy may accept a connection and say nothing.
	shortestSilence = time.Second
)

// RefusedError says why no lock was granted. Code is the word of the coordinator. It is empty if none has answered.
type RefusedError struct {
	Code      string
	err       error
	hasWaited bool // the call was in the queue of the coordinator before
	isUnclear bool // the answer may be lost, because the connection broke
}

func (e *RefusedError) Error() string { return e.err.Error() }
func (e *RefusedError) Unwrap() error { return e.err }

// Client has connections to coordinators. Goroutines may share it. Set its fields before the first lock.
type Client struct {
	ClientID string // what operators and others in the queue see; by default "program@host:pid"
	Token    string // a bearer token of the coordinator

	addresses   []string
	options     []grpc.DialOption
	mutex       sync.Mutex // guards the next three
	connections map[string]*connection
	left        map[*connection]struct{} // those that hang, until their calls are over
	isClosed    bool
	preferred   atomic.Int64 // index of the address to ask first
}

type connection struct {
	*grpc.ClientConn
	calls sync.WaitGroup // added to under the mutex of the client
}

// New returns a client of the coordinators at these addresses, "host:port". The options must have credentials.
func New(addresses []string, options ...grpc.DialOption) *Client {
	if len(addresses) == 0 {
		panic("zklock: addresses is empty")
	}
	host, _ := os.Hostname()
	ping := keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second} // notices a dead coordinator
	retry := grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: replyTimeout}
	retry.Backoff.BaseDelay, retry.Backoff.MaxDelay = shortestPause, longestPause
	return &Client{
		ClientID:    fmt.Sprintf("%s@%s:%d", os.Args[0], host, os.Getpid()),
		addresses:   addresses,
		options:     append(slices.Clone(options), grpc.WithKeepaliveParams(ping), grpc.WithConnectParams(retry)),
		connections: map[string]*connection{},
		left:        map[*connection]struct{}{},
	}
}

// Close ends all connections. Leases that are still held run out.
func (c *Client) Close() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.isClosed = true
	for _, connection := range c.connections {
		connection.Close()
	}
	for connection := range c.left {
		connection.Close()
	}
}

// connection returns the connection to an address. The caller calls calls.Done at the end.
func (c *Client) connection(address string) (*connection, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.isClosed {
		return nil, errClosed
	}
	if c.connections[address] == nil {
		dialled, err := grpc.Dial(address, c.options...)
		if err != nil {
			return nil, err
		}
		c.connections[address] = &connection{ClientConn: dialled}
	}
	c.connections[address].calls.Add(1)
	return c.connections[address], nil
}

// leave lets later calls use a new connection, as this one may hang. Its other calls go on.
func (c *Client) leave(address string, hanging *connection) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.connections[address] != hanging {
		return
	}
	delete(c.connections, address)
	c.left[hanging] = struct{}{}
	go func() {
		hanging.calls.Wait()
		hanging.Close()
		c.mutex.Lock()
		defer c.mutex.Unlock()
		delete(c.left, hanging)
	}()
}

// connect waits for the connection or its first failure, and returns the state. gRPC would wait for a silent
// coordinator as long as the call may take.
func connect(ctx context.Context, connection *grpc.ClientConn, timeout time.Duration) (connectivity.State, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		state := connection.GetState()
		if state != connectivity.Idle && state != connectivity.Connecting {
			return state, nil // after a failure, the call fails at once, and says why
		}
		if idle, ok := any(connection).(interface{ Connect() }); ok { // older versions of gRPC connect by themselves
			idle.Connect()
		}
		if !connection.WaitForStateChange(ctx, state) {
			return state, errors.New("it did not accept a connection in time")
		}
	}
}

// Options of a lock. The zero value is an exclusive lock, and waits for it until the context ends.
type Options struct {
	Term        time.Duration // from the last message of this client to the end of the lease; by default 10 s
	Wait        time.Duration // for the lock, at most; if it is negative, as NoWait
	NoWait      bool
	Kind        pb.Kind
	Limit       int32 // of a semaphore: the number of permits
	SignedToken bool  // get a signed token, too
	// OnRequest is called once, on a goroutine of its own, if an operator, or a coordinator about to end, wants the lock
	// back.
	OnRequest func(reason string)
}

// Lease is a lock that is held.
type Lease struct {
	Token       int64 // the fencing token: it rises with each grant of the lock
	Path        string
	SignedToken string

	client    *Client
	id        string
	giver     int64  // index of the address that gave it
	address   string // of the keeper; after it has ended, of the release
	onRequest func(reason string)
	requested atomic.Pointer[string]
	start     time.Time    // its difference to now is monotonic
	until     atomic.Int64 // nanoseconds since start; 0 after the lease is lost or released
	isCertain bool         // when the lease ends; of the keeper
	certain   chan struct{}
	lose      func(reason string)
}

// Remaining returns for how long the lock may be used, even if the lease is not kept any longer; 0 if it is over.
func (l *Lease) Remaining() time.Duration { return l.remaining(l.until.Load()) }

func (l *Lease) remaining(until int64) time.Duration {
	return max(0, time.Duration(until)-time.Since(l.start))
}

// WithLock calls work while the lock is held. The context of work is cancelled when the lock is lost. Then the result
// is ErrLost, unless work returns an error.
func (c *Client) WithLock(ctx context.Context, key string, options Options,
	work func(ctx context.Context, lease *Lease) error) (err error) {
	if c.Token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.Token)
	}
	lease, err := c.acquire(ctx, key, options)
	if err != nil {
		return err
	}
	held, cancel := context.WithCancelCause(ctx)
	keeping, stop := context.WithCancel(context.WithoutCancel(ctx)) // until work has returned
	lease.lose = func(reason string) {
		lease.until.Store(0)
		cancel(fmt.Errorf("%w: %s", ErrLost, reason))
		stop()
	}
	kept := make(chan struct{})
	go func() { defer close(kept); lease.keep(keeping) }()
	defer func() {
		cancel(nil)
		stop()
		<-kept
		if errors.Is(context.Cause(held), ErrLost) {
			return
		}
		if problem := lease.release(context.WithoutCancel(ctx)); err == nil {
			err = problem
		}
		lease.until.Store(0)
	}()
	select {
	case <-lease.certain: // the first answer to a keep-alive says when the lease ends
	case <-held.Done():
		return context.Cause(held)
	}
	if err := work(held, lease); err != nil {
		return err
	}
	if lease.Remaining() == 0 {
		lease.runOut() // after a pause of the program, the keeper may not have noticed it yet
	}
	return context.Cause(held) // nil unless the lock was lost, or ctx has ended
}

func (c *Client) acquire(ctx context.Context, key string, options Options) (*Lease, error) {
	requestID := make([]byte, 16)
	if _, err := cryptorand.Read(requestID); err != nil {
		return nil, err
	}
	request := &pb.RecordLockRequest{
		ResourcePath: key, ClientId: c.ClientID, WaitBlocking: !options.NoWait, Kind: options.Kind,
		SessionTimeoutMs: options.Term.Milliseconds(), Limit: options.Limit, SignedToken: options.SignedToken,
		RequestId: hex.EncodeToString(requestID), // the same in all tries
	}
	if options.Term == 0 {
		request.SessionTimeoutMs = 10_000
	}
	if options.Wait < 0 {
		options.NoWait, options.Wait = true, 0
	}
	isLimited := options.NoWait || options.Wait != 0 && options.Wait < forever
	deadline := time.Now().Add(options.Wait)
	giveUp := deadline.Add(replyTimeout)
	for index, failures, isRepeated := int(c.preferred.Load()), 0, false; ; {
		index %= len(c.addresses)
		sent := time.Now()
		timeout := time.Duration(math.MaxInt64)
		if isLimited {
			left := max(0, time.Until(deadline))
			request.WaitBlocking, request.WaitLimitMs = left >= time.Millisecond, left.Milliseconds()
			timeout = left + replyTimeout
		}
		connecting := replyTimeout
		if isRepeated {
			connecting = longWait
		}
		reply, refused := c.record(ctx, c.addresses[index], request, timeout, connecting)
		if refused != nil {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if refused.hasWaited { // well until now
				failures, isRepeated = 0, false
			}
			isRepeated = !isRepeated && refused.isUnclear
			if isRepeated {
				continue // ask the same one: it knows the request, and gives the same lease
			}
			if failures++; failures == 1 && !isLimited {
				giveUp = time.Now().Add(replyTimeout)
			}
			index++
			pause := time.Duration(0)
			if failures >= len(c.addresses) {
				pause = time.Duration(rand.Int63n(int64(longestPause)))
			}
			isOver := pause > 0 && time.Now().Add(pause).After(giveUp)
			if isOver || !slices.Contains(retried, refused.Code) {
				return nil, refused
			}
			if !sleep(ctx, pause) {
				return nil, context.Cause(ctx)
			}
			continue
		}
		c.preferred.Store(int64(index))
		failures, isRepeated = 0, false
		if reply.Acquired {
			lease := &Lease{
				Token: reply.FencingToken, Path: reply.AcquiredZnodePath, SignedToken: reply.SignedToken, client: c,
				id: reply.LeaseId, giver: int64(index), address: c.addresses[index], onRequest: options.OnRequest,
				start: time.Now(), certain: make(chan struct{}),
			}
			lease.until.Store(usable(reply.LeaseDurationMs)) // only a guess, as the request may have waited
			return lease, nil
		}
		if isLimited && time.Now().After(deadline) || time.Since(sent) < longWait {
			if options.NoWait {
				return nil, fmt.Errorf("%w: %s", ErrBusy, reply.Detail)
			}
			return nil, fmt.Errorf("%w: %s", ErrTimeout, reply.Detail)
		}
	}
}

func (c *Client) record(ctx context.Context, address string, request *pb.RecordLockRequest,
	timeout, connecting time.Duration) (*pb.RecordLockResponse, *RefusedError) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	connection, err := c.connection(address)
	if err != nil {
		return nil, &RefusedError{err: fmt.Errorf("no connection to %s: %w", address, err)}
	}
	defer connection.calls.Done()
	state, err := connect(ctx, connection.ClientConn, connecting)
	if err != nil {
		return nil, &RefusedError{err: fmt.Errorf("no connection to %s: %w", address, err)}
	}
	var header, trailer metadata.MD
	asked := time.Now()
	stub := pb.NewLockCoordinatorClient(connection)
	reply, err := stub.RecordLock(ctx, request, grpc.Header(&header), grpc.Trailer(&trailer))
	if err == nil {
		return reply, nil
	}
	code := hint(trailer, "zklock-code")
	wasSent := state == connectivity.Ready
	return nil, &RefusedError{
		Code:      code,
		err:       fmt.Errorf("no lock from %s: %w", address, err),
		hasWaited: hint(header, "zklock-queued") != "" && time.Since(asked) >= longWait,
		isUnclear: wasSent && code == "" && status.Code(err) != codes.DeadlineExceeded,
	}
}

// Nanoseconds of a lease for the work. In the rest, work that is told of the loss can stop before the lease is over.
func usable(milliseconds int64) int64 { return milliseconds * int64(time.Millisecond) / 10 * 9 }

// After these codes another try may succeed. A failure on the way to the coordinator has no code.
var retried = []string{"", "unavailable", "too-many", "lease-elsewhere"}

func hint(trailer metadata.MD, key string) string { return append(trailer.Get(key), "")[0] }

// keep renews the lease until ctx ends, or the lease is over.
func (l *Lease) keep(ctx context.Context) {
	go func() {
		for left := l.Remaining(); sleep(ctx, left); left = l.Remaining() {
			if left == 0 {
				l.runOut()
				return
			}
		}
	}()
	for ctx.Err() == nil {
		l.follow(l.stream(ctx))
		sleep(ctx, shortestPause)
	}
}

// stream keeps one stream open, and returns its trailer when it has ended.
func (l *Lease) stream(ctx context.Context) metadata.MD {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	address := l.address
	connection, err := l.client.connection(address)
	if err != nil {
		return nil
	}
	defer connection.calls.Done()
	silence := func() time.Duration { return max(l.Remaining()/3, shortestSilence) }
	timer := time.AfterFunc(silence(), func() {
		l.client.leave(address, connection)
		cancel()
	})
	defer timer.Stop()
	var isAnswered atomic.Bool
	stream, err := pb.NewLockCoordinatorClient(connection).KeepAlive(ctx)
	if err != nil {
		return nil
	}
	go func() {
		request := &pb.KeepAliveRequest{LeaseId: l.id}
		for ctx.Err() == nil {
			if isAnswered.Swap(false) {
				timer.Reset(silence())
			}
			request.SentAt = time.Since(l.start).Nanoseconds()
			if stream.Send(request) != nil {
				return
			}
			sleep(ctx, max(l.Remaining()/3, shortestPause))
		}
	}()
	for {
		state, err := stream.Recv()
		if err != nil {
			return stream.Trailer()
		}
		timer.Stop()
		isAnswered.Store(true)
		if state.State == pb.LeaseState_STATE_OVER {
			l.lose(state.Detail)
			return nil
		}
		if !l.extend(state.SentAt + usable(state.LeaseDurationMs)) {
			l.runOut()
			return nil
		}
		if !l.isCertain {
			l.isCertain = true
			close(l.certain)
		}
		if state.ReleaseRequested && l.requested.Swap(&state.Detail) == nil && l.onRequest != nil {
			go l.onRequest(state.Detail)
		}
	}
}

// extend moves the end of the lease. It returns false if the lease is over: then its user may know that.
func (l *Lease) extend(until int64) bool {
	for {
		known := l.until.Load()
		if l.remaining(known) == 0 {
			return false
		}
		if l.isCertain && until <= known || l.until.CompareAndSwap(known, until) {
			return true
		}
	}
}

// follow goes to the address that a coordinator names, if another one has the lease.
func (l *Lease) follow(trailer metadata.MD) {
	if address := hint(trailer, "zklock-address"); address != "" && hint(trailer, "zklock-code") == "lease-elsewhere" {
		l.address = address
	}
}

// avoid asks another coordinator for the next lease: this one may be frozen.
func (l *Lease) avoid() {
	l.client.preferred.CompareAndSwap(l.giver, (l.giver+1)%int64(len(l.client.addresses)))
}

func (l *Lease) runOut() {
	l.avoid()
	reason := "it was not kept in time"
	if requested := l.requested.Load(); requested != nil {
		reason += " (" + *requested + ")"
	}
	l.lose(reason)
}

func (l *Lease) release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, min(l.Remaining(), replyTimeout))
	defer cancel()
	isUnclear := false // a try whose answer was lost may have released it
	for try := 0; try < releases && ctx.Err() == nil; try++ {
		reply, trailer, err := l.releaseOnce(ctx)
		if err == nil {
			if !reply.Released && !isUnclear {
				return fmt.Errorf("%w: %s", ErrLost, reply.Detail)
			}
			return nil
		}
		code := hint(trailer, "zklock-code")
		if !slices.Contains(retried, code) {
			break
		}
		if code == "" {
			isUnclear = true
			l.avoid()
		}
		l.follow(trailer)
		sleep(ctx, shortestPause)
	}
	return nil // the lock is free when its lease is over
}

func (l *Lease) releaseOnce(ctx context.Context) (reply *pb.ReleaseLockResponse, trailer metadata.MD, err error) {
	connection, err := l.client.connection(l.address)
	if err != nil {
		return nil, nil, err
	}
	defer connection.calls.Done()
	stub := pb.NewLockCoordinatorClient(connection)
	reply, err = stub.ReleaseLock(ctx, &pb.ReleaseLockRequest{LeaseId: l.id}, grpc.Trailer(&trailer))
	return reply, trailer, err
}

// sleep returns false if ctx ends before.
func sleep(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
