package zklock.client;

import io.grpc.ConnectivityState;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ClientResponseObserver;
import io.grpc.stub.MetadataUtils;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Consumer;
import java.util.function.UnaryOperator;
import zklock.v1.LockCoordinatorGrpc;
import zklock.v1.LockCoordinatorOuterClass.KeepAliveRequest;
import zklock.v1.LockCoordinatorOuterClass.Kind;
import zklock.v1.LockCoordinatorOuterClass.LeaseState;
import zklock.v1.LockCoordinatorOuterClass.RecordLockRequest;
import zklock.v1.LockCoordinatorOuterClass.RecordLockResponse;
import zklock.v1.LockCoordinatorOuterClass.ReleaseLockRequest;

/** Locks of a django-zklock coordinator. Threads may share a client. It needs Java 17 or newer. */
public final class ZkLockClient implements AutoCloseable {
  /** The root of the errors. The code is the coordinator's word for the reason; it is empty if none has answered. */
  public static class ZkLockException extends RuntimeException {
    public final String code;

    ZkLockException(String message, String code) {
      super(message);
      this.code = code;
    }
  }

  public static final class LockBusyException extends ZkLockException {
    LockBusyException(String message) { super(message, ""); }
  }

  public static final class LockTimeoutException extends ZkLockException {
    LockTimeoutException(String message) { super(message, ""); }
  }

  public static final class LockLostException extends ZkLockException {
    LockLostException(String message) { super(message, ""); }
  }

  /** The options of a lock. */
  public static final class Options {
    /** From the last message of this client to the end of the lease. The client renews it. */
    public Duration term = Duration.ofSeconds(10);
    /** How long to wait for the lock; zero does not wait, and null has no limit. */
    public Duration wait = null;
    public Kind kind = Kind.KIND_LOCK;
    /** Of a semaphore: the number of permits. */
    public int limit = 0;
    public boolean signedToken = false;
    /** Called once, on a thread of its own, when the lock is lost, with the reason. */
    public Consumer<String> onLost = reason -> {};
    /** Called once, on a thread of its own, if an operator or a coordinator about to end wants the lock back. */
    public Consumer<String> onReleaseRequested = reason -> {};
  }

  private static final long SECOND = 1_000_000_000;
  private static final long REPLY_TIMEOUT = 5 * SECOND; // for the coordinators, apart from the wait for the lock
  private static final long SHORTEST_PAUSE = SECOND / 10;
  private static final long LONGEST_PAUSE = SECOND / 2;
  // If a lease gets no answer for so long, nor for a third of its time, its connection hangs: the packets of a
  // coordinator that restarts elsewhere may vanish, or a proxy may accept a connection and say nothing.
  private static final long SHORTEST_SILENCE = SECOND;
  // A call that ends after such a wait in the queue is sent again: coordinators bound waits, and are upgraded.
  private static final long LONG_WAIT = SECOND;
  private static final Duration FOREVER = Duration.ofDays(3650); // a longer wait has no limit, as sums would overflow
  private static final int RELEASES = 10; // tries: a coordinator that is gone for longer has ended its leases
  // After these codes another try may succeed. A failure on the way to the coordinator has no code.
  private static final Set<String> RETRIED = Set.of("", "unavailable", "too-many", "lease-elsewhere");
  private static final String NOT_KEPT = "it was not kept in time";
  private static final SecureRandom RANDOM = new SecureRandom();

  private final List<String> addresses;
  private final UnaryOperator<ManagedChannelBuilder<?>> security;
  private final String clientId;
  private final Map<String, ManagedChannel> channels = new ConcurrentHashMap<>();
  private final Set<ManagedChannel> left = ConcurrentHashMap.newKeySet(); // until their calls are over
  private final ScheduledThreadPoolExecutor timer = new ScheduledThreadPoolExecutor(1, work -> daemon(work));
  private final AtomicInteger preferred = new AtomicInteger(); // index of the address to ask first

  /** `security` sets the credentials of a channel, such as `ManagedChannelBuilder::usePlaintext`. */
  public ZkLockClient(List<String> addresses, String clientId, UnaryOperator<ManagedChannelBuilder<?>> security) {
    if (addresses.isEmpty()) throw new IllegalArgumentException("addresses is empty");
    this.addresses = List.copyOf(addresses);
    this.clientId = clientId;
    this.security = security;
    timer.setRemoveOnCancelPolicy(true);
  }

  /** End all connections. Leases that are still held run out. */
  @Override
  public void close() {
    timer.shutdownNow();
    channels.values().forEach(ManagedChannel::shutdownNow);
    left.forEach(ManagedChannel::shutdownNow);
  }

  /** Acquire a lock. Use it in a `try` block, which releases it at the end. */
  public Lease lock(String key, Options options) throws InterruptedException {
    var requestId = new byte[16];
    RANDOM.nextBytes(requestId);
    var request = RecordLockRequest.newBuilder().setResourcePath(key).setClientId(clientId).setKind(options.kind)
        .setSessionTimeoutMs(options.term.toMillis()).setLimit(options.limit).setSignedToken(options.signedToken)
        .setRequestId(HexFormat.of().formatHex(requestId)); // the same in all tries
    boolean limited = options.wait != null && options.wait.compareTo(FOREVER) < 0;
    long deadline = System.nanoTime() + (limited ? options.wait.toNanos() : 0);
    long giveUp = deadline + REPLY_TIMEOUT;
    int failures = 0;
    boolean repeated = false;
    for (int index = preferred.get(); ; ) {
      String address = addresses.get(index %= addresses.size());
      long sent = System.nanoTime();
      long left = Math.max(0, deadline - sent);
      request.setWaitBlocking(!limited || left >= 1_000_000).setWaitLimitMs(left / 1_000_000);
      boolean connected = false;
      var headers = new AtomicReference<Metadata>(); // of the answer
      var locks = LockCoordinatorGrpc.newBlockingStub(channel(address)).withInterceptors(
          MetadataUtils.newCaptureMetadataInterceptor(headers, new AtomicReference<>()));
      if (limited) locks = locks.withDeadlineAfter(left + REPLY_TIMEOUT, TimeUnit.NANOSECONDS);
      RecordLockResponse reply;
      try {
        connect(address, repeated ? LONG_WAIT : REPLY_TIMEOUT);
        connected = true;
        sent = System.nanoTime();
        reply = locks.recordLock(request.build());
      } catch (StatusRuntimeException error) {
        if (Thread.interrupted()) throw new InterruptedException(); // the call was cancelled
        String code = hint(error, "zklock-code");
        if (!hint(headers.get(), "zklock-queued").isEmpty() && System.nanoTime() >= sent + LONG_WAIT) {
          failures = 0; // it has waited well until now
          repeated = false;
        }
        // The answer may be lost with its connection. Ask the same one: it knows the request, and gives the same lease.
        boolean expired = error.getStatus().getCode() == Status.Code.DEADLINE_EXCEEDED;
        repeated = !repeated && connected && code.isEmpty() && !expired;
        if (repeated) continue;
        if (++failures == 1 && !limited) giveUp = System.nanoTime() + REPLY_TIMEOUT;
        index++;
        boolean all = failures >= addresses.size();
        long pause = all ? ThreadLocalRandom.current().nextLong(LONGEST_PAUSE) : 0;
        if (!RETRIED.contains(code) || all && System.nanoTime() + pause > giveUp) {
          throw new ZkLockException("no lock from " + address + ": " + error.getMessage(), code);
        }
        TimeUnit.NANOSECONDS.sleep(pause);
        continue;
      }
      preferred.set(index);
      failures = 0;
      repeated = false;
      if (reply.getAcquired()) {
        var lease = new Lease(key, index, reply, options);
        try {
          lease.begin();
          return lease;
        } catch (InterruptedException | RuntimeException error) {
          lease.release();
          throw error;
        }
      }
      if (limited && System.nanoTime() >= deadline || System.nanoTime() < sent + LONG_WAIT) {
        boolean waited = limited && !options.wait.isZero();
        throw waited ? new LockTimeoutException(reply.getDetail()) : new LockBusyException(reply.getDetail());
      }
    }
  }

  private ManagedChannel channel(String address) {
    var channel = channels.computeIfAbsent(address, target -> security.apply(ManagedChannelBuilder.forTarget(target))
        .keepAliveTime(10, TimeUnit.SECONDS).keepAliveTimeout(5, TimeUnit.SECONDS).build());
    channel.resetConnectBackoff(); // gRPC would try to connect every two minutes in the end
    return channel;
  }

  // Let later calls use a new connection, as this one may hang. Its other calls go on.
  private void leave(String address, ManagedChannel channel) {
    if (!channels.remove(address, channel)) return;
    left.removeIf(ManagedChannel::isTerminated);
    left.add(channel.shutdown());
  }

  // gRPC would wait for a connection to a frozen coordinator as long as the call may take.
  private void connect(String address, long timeout) throws InterruptedException {
    long deadline = System.nanoTime() + timeout;
    var channel = channel(address);
    for (var state = ConnectivityState.IDLE; state != ConnectivityState.READY; Thread.sleep(5)) {
      state = channel.getState(true);
      boolean failed = state == ConnectivityState.TRANSIENT_FAILURE || state == ConnectivityState.SHUTDOWN;
      if (failed || System.nanoTime() >= deadline) {
        throw Status.UNAVAILABLE.withDescription("no connection").asRuntimeException();
      }
    }
  }

  private static String hint(Throwable error, String key) {
    return hint(Status.trailersFromThrowable(error), key);
  }

  private static String hint(Metadata metadata, String key) {
    String text = metadata == null ? null : metadata.get(Metadata.Key.of(key, Metadata.ASCII_STRING_MARSHALLER));
    return text == null ? "" : text;
  }

  private static Thread daemon(Runnable work) {
    var thread = new Thread(work, "zklock");
    thread.setDaemon(true);
    return thread;
  }

  /** A lock that is held. */
  public final class Lease implements AutoCloseable {
    /** The fencing token: it rises with each grant of the lock. */
    public final long token;
    public final String path;
    public final String signedToken;
    private final String key;
    private final String id;
    private final int giver; // index of the address that gave it
    private final Options options;
    private final CountDownLatch certain = new CountDownLatch(1); // when the lease ends, or that it is over
    private volatile String address;
    private volatile long until; // by System.nanoTime()
    private volatile String lost = "";
    private volatile String requested = "";
    private volatile boolean ended; // lost, or released; set after `lost`
    private ClientCallStreamObserver<KeepAliveRequest> stream; // guarded by this, as the next
    private ManagedChannel channel; // of the stream
    private long unansweredSince; // the first request on the stream without an answer, by System.nanoTime()
    private boolean answered;
    private Future<?> next;

    private Lease(String key, int giver, RecordLockResponse reply, Options options) {
      this.key = key;
      this.giver = giver;
      address = addresses.get(giver);
      this.options = options;
      id = reply.getLeaseId();
      token = reply.getFencingToken();
      path = reply.getAcquiredZnodePath();
      signedToken = reply.getSignedToken();
      until = System.nanoTime() + usable(reply.getLeaseDurationMs()); // only a guess, as the request may have waited
    }

    /** Return for how long the lock may be used, even if the lease is not kept any longer; zero if it is over. */
    public Duration remaining() {
      return Duration.ofNanos(ended ? 0 : Math.max(0, until - System.nanoTime()));
    }

    /** Return why an operator, or a coordinator about to end, wants the lock back; empty if nobody does. */
    public String releaseRequested() {
      return requested;
    }

    /** Throw `LockLostException` if the lock is lost, or another `ZkLockException` if it was released. */
    public void check() {
      if (remaining().isZero()) runOut();
      if (!lost.isEmpty()) throw new LockLostException("the lock " + key + " was lost: " + lost);
      if (ended) throw new ZkLockException("the lock " + key + " was released", "");
    }

    /** Release the lock. Throw `LockLostException` if it was lost before. Called again, do nothing. */
    @Override
    public void close() {
      if (ended && lost.isEmpty()) return;
      check();
      release();
      if (!lost.isEmpty()) check();
    }

    // In the last tenth of the lease, work that is told of the loss can stop.
    private static long usable(long milliseconds) {
      return milliseconds * 900_000;
    }

    private void begin() throws InterruptedException {
      keep();
      certain.await();
      check();
    }

    private synchronized void keep() {
      if (ended) return;
      long left = remaining().toNanos();
      if (left == 0) {
        runOut();
        return;
      }
      if (stream != null && !answered && System.nanoTime() - unansweredSince >= SHORTEST_SILENCE) reconnect();
      if (stream == null) open();
      if (answered) unansweredSince = System.nanoTime();
      answered = false;
      stream.onNext(KeepAliveRequest.newBuilder().setLeaseId(id).setSentAt(System.nanoTime()).build());
      plan(Math.min(left, Math.max(left / 3, SHORTEST_PAUSE)));
    }

    private synchronized void plan(long pause) {
      if (ended || timer.isShutdown()) return;
      if (next != null) next.cancel(false);
      next = timer.schedule(this::keep, pause, TimeUnit.NANOSECONDS);
    }

    private void reconnect() {
      leave(address, channel);
      stream.cancel("it hangs", null);
      stream = null;
    }

    private void open() {
      var observer = new ClientResponseObserver<KeepAliveRequest, LeaseState>() {
        private ClientCallStreamObserver<KeepAliveRequest> own;

        @Override
        public void beforeStart(ClientCallStreamObserver<KeepAliveRequest> requests) {
          own = requests;
        }

        @Override
        public void onNext(LeaseState state) {
          update(state);
        }

        @Override
        public void onError(Throwable error) {
          synchronized (Lease.this) {
            if (stream != own) return;
            stream = null;
            follow(error);
            plan(Math.min(remaining().toNanos(), SHORTEST_PAUSE)); // open another one
          }
        }

        @Override
        public void onCompleted() {
          onError(null);
        }
      };
      channel = channel(address);
      answered = true;
      stream = (ClientCallStreamObserver<KeepAliveRequest>) LockCoordinatorGrpc.newStub(channel).keepAlive(observer);
    }

    private synchronized void update(LeaseState state) {
      answered = true;
      if (state.getState() == LeaseState.State.STATE_OVER) {
        lose(state.getDetail());
      } else if (remaining().isZero()) {
        runOut(); // its user may know that it is over
      } else {
        long end = state.getSentAt() + usable(state.getLeaseDurationMs());
        until = certain.getCount() > 0 ? end : Math.max(until, end);
        certain.countDown();
        if (state.getReleaseRequested() && requested.isEmpty()) {
          requested = state.getDetail();
          daemon(() -> options.onReleaseRequested.accept(requested)).start();
        }
      }
    }

    // If another coordinator has the lease, go to the address that this one names.
    private void follow(Throwable error) {
      String other = hint(error, "zklock-address");
      if (hint(error, "zklock-code").equals("lease-elsewhere") && !other.isEmpty()) address = other;
    }

    // Ask another coordinator for the next lease: this one may be frozen.
    private void avoid() {
      preferred.compareAndSet(giver, (giver + 1) % addresses.size());
    }

    private synchronized void runOut() {
      if (ended) return;
      avoid();
      lose(requested.isEmpty() ? NOT_KEPT : NOT_KEPT + " (" + requested + ")");
    }

    private synchronized void lose(String reason) {
      if (ended) return;
      lost = reason;
      end();
      daemon(() -> options.onLost.accept(reason)).start();
    }

    private synchronized void end() {
      ended = true;
      if (next != null) next.cancel(false);
      if (stream != null) stream.cancel("the lease is over", null);
      stream = null;
      certain.countDown();
    }

    private void release() {
      long deadline = System.nanoTime() + Math.min(remaining().toNanos(), REPLY_TIMEOUT);
      end();
      boolean interrupted = Thread.interrupted(); // an interrupted thread releases, too
      boolean unclear = false; // a try whose answer was lost may have released it
      for (int tries = 0; tries < RELEASES && System.nanoTime() < deadline; tries++) {
        try {
          var locks = LockCoordinatorGrpc.newBlockingStub(channel(address));
          var reply = locks.withDeadlineAfter(deadline - System.nanoTime(), TimeUnit.NANOSECONDS)
              .releaseLock(ReleaseLockRequest.newBuilder().setLeaseId(id).build());
          if (!reply.getReleased() && !unclear) lost = reply.getDetail();
          break;
        } catch (StatusRuntimeException error) {
          String code = hint(error, "zklock-code");
          if (!RETRIED.contains(code)) break; // the lock is free when its lease is over
          if (code.isEmpty()) {
            unclear = true;
            avoid();
          }
          follow(error);
          interrupted |= Thread.interrupted();
          LockSupport.parkNanos(SHORTEST_PAUSE);
        }
      }
      if (interrupted) Thread.currentThread().interrupt();
    }
  }
}
