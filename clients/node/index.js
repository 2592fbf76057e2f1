// Hold a lock of a django-zklock coordinator while a function runs. `index.d.ts` explains all options.
"use strict";

const crypto = require("node:crypto");
const os = require("node:os");
const path = require("node:path");
const { setTimeout: sleep } = require("node:timers/promises");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const definition = loader.loadSync(path.join(__dirname, "lock_coordinator.proto"), {
  keepCase: true,
  longs: String, // a fencing token may be too large for a number
  enums: String,
  defaults: true,
});
const { LockCoordinator } = grpc.loadPackageDefinition(definition).zklock.v1;

const CHANNEL = {
  "grpc.keepalive_time_ms": 10000, // or a call that waits would not notice that its coordinator is gone
  "grpc.keepalive_timeout_ms": 5000,
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 500,
  "grpc.dns_min_time_between_resolutions_ms": 1000, // a coordinator may start again with another address
  "grpc.use_local_subchannel_pool": 1, // or a new channel would use the connection that hangs
};
const FAILED = [grpc.connectivityState.TRANSIENT_FAILURE, grpc.connectivityState.SHUTDOWN];
const KINDS = ["lock", "read", "write", "semaphore"];
// After these codes another try may succeed. A failure on the way to the coordinator has no code.
const RETRIED = ["", "unavailable", "too-many", "lease-elsewhere"];
const USABLE = 0.9; // of a lease: in the rest, the work that is told of the loss can stop before the lease is over
const SHORTEST_PAUSE = 100;
// If a lease gets no answer for so long, nor for a third of its time, its connection hangs: the packets of a
// coordinator that restarts elsewhere may vanish, or a proxy may accept a connection and say nothing.
const SHORTEST_SILENCE = 1000;
const FOREVER = 1e12; // gRPC cannot count to the end of a wait that is much longer, so it has no limit
const LONGEST_PAUSE = 500;
const RELEASES = 10; // tries: a coordinator that is gone for longer has ended its leases
// A call that ends after such a wait in the queue is sent again: coordinators bound waits, and are upgraded.
const LONG_WAIT = 1000;
const RAN_OUT = "the lease was not kept in time";

class ZkLockError extends Error {
  constructor(message, code = "") {
    super(message);
    this.name = new.target.name;
    this.code = code;
  }
}
class LockBusy extends ZkLockError {}
class LockTimeout extends ZkLockError {}
class LockLost extends ZkLockError {}
class LeaseRefused extends ZkLockError {}
class CoordinatorUnavailable extends ZkLockError {}

const now = () => performance.now(); // not the wall clock, which may jump

const hint = (metadata, name) => String(metadata?.get(name)[0] ?? "");

// Whether the answer to a call may be lost, because its connection broke.
const mayHaveAnswered = ({ code, cause }) => code === "" && cause.code !== grpc.status.DEADLINE_EXCEEDED;

class ZkLockClient {
  constructor(addresses, { credentials, token, clientId, replyTimeout = 5000 } = {}) {
    this._addresses = [addresses].flat();
    if (!this._addresses.length) throw new TypeError('addresses is empty; give one, such as "127.0.0.1:50051"');
    this._credentials = credentials ?? grpc.credentials.createInsecure();
    this._clientId = clientId ?? `${path.basename(process.argv[1] ?? "node")}@${os.hostname()}:${process.pid}`;
    this._replyTimeout = replyTimeout;
    this._metadata = new grpc.Metadata();
    if (token) this._metadata.set("authorization", `Bearer ${token}`);
    this._stubs = new Map(); // by address
    this._preferred = 0; // the index of the address to ask first
    this._leases = new Set();
    this._waiting = new Map(); // calls that ask for a lock, with their stubs
    this._closed = false;
  }

  async withLock(resource, options, work) {
    const lease = await this._acquire(resource, options);
    try {
      await lease._begin();
      const result = await work(lease);
      await lease._release();
      lease.signal.throwIfAborted();
      return result;
    } finally {
      await lease._release();
    }
  }

  close() {
    this._closed = true;
    for (const call of this._waiting.keys()) call.cancel();
    for (const lease of this._leases) lease._lose("the client was closed");
    for (const stub of this._stubs.values()) stub.close();
  }

  _stub(address) {
    if (!this._stubs.has(address)) {
      this._stubs.set(address, new LockCoordinator(address, this._credentials, CHANNEL));
    }
    return this._stubs.get(address);
  }

  // Let later calls use a new connection, as this one may hang. Its other calls go on.
  _leave(address, stub) {
    if (this._stubs.get(address) !== stub) return;
    this._stubs.delete(address);
    this._closeIfIdle(stub);
  }

  _closeIfIdle(stub) {
    if (![...this._waiting.values()].includes(stub)) stub.close();
  }

  // Fail if no connection is made in time: gRPC would wait for a frozen coordinator as long as the call may take.
  _connected(address, timeout) {
    const channel = this._stub(address).getChannel();
    const deadline = Date.now() + timeout;
    return new Promise((resolve, reject) => {
      const look = (error) => {
        const state = channel.getConnectivityState(true);
        if (state === grpc.connectivityState.READY) return resolve();
        if (error || FAILED.includes(state)) {
          return reject(new CoordinatorUnavailable(`no connection to the coordinator ${address}`));
        }
        channel.watchConnectivityState(state, deadline, look);
      };
      look();
    });
  }

  // Call a method; fail after `timeout` milliseconds, or when `signal` is aborted.
  _call(address, method, request, timeout, signal) {
    return new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      let isQueued = false;
      const cancel = () => call.cancel();
      const stub = this._stub(address);
      const call = stub[method](
        request,
        this._metadata,
        { deadline: Date.now() + timeout },
        (error, reply) => {
          signal?.removeEventListener("abort", cancel);
          this._waiting.delete(call);
          if (this._stubs.get(address) !== stub) this._closeIfIdle(stub);
          if (!error) return resolve(reply);
          if (signal?.aborted) return reject(signal.reason);
          const code = hint(error.metadata, "zklock-code");
          const failure = ["", "unavailable"].includes(code)
            ? new CoordinatorUnavailable(`no lock from the coordinator ${address}: ${error.details}`, code)
            : new LeaseRefused(error.details, code);
          reject(Object.assign(failure, { cause: error, isQueued }));
        },
      );
      call.on("metadata", (metadata) => (isQueued = hint(metadata, "zklock-queued") !== ""));
      signal?.addEventListener("abort", cancel);
      if (method === "RecordLock") this._waiting.set(call, stub);
    });
  }

  async _acquire(resource, options) {
    const { term = 10000, wait = Infinity, kind = "lock", limit, signedToken, signal, ...rest } = options;
    const { onReleaseRequested, ...unknown } = rest;
    if (!KINDS.includes(kind)) throw new TypeError(`there is no kind ${kind}; known kinds: ${KINDS.join(", ")}`);
    if (Object.keys(unknown).length) throw new TypeError(`unknown options: ${Object.keys(unknown).join(", ")}`);
    // gRPC throws outside of any promise if a deadline is not a number.
    for (const [name, value] of Object.entries({ term, wait, replyTimeout: this._replyTimeout })) {
      if (typeof value !== "number" || Number.isNaN(value)) throw new TypeError(`${name} is ${value}, not a number`);
    }
    const request = {
      resource_path: resource,
      client_id: this._clientId,
      session_timeout_ms: Math.max(1, Math.ceil(term)), // 0 would be the default
      kind: `KIND_${kind.toUpperCase()}`,
      limit,
      signed_token: signedToken,
      request_id: crypto.randomBytes(16).toString("hex"), // the same in all tries
    };
    const deadline = wait > FOREVER ? Infinity : now() + wait;
    let giveUp = deadline + this._replyTimeout;
    for (let index = this._preferred, failures = 0, isRepeated = false; ; ) {
      const address = this._addresses[(index %= this._addresses.length)];
      if (this._closed) throw new ZkLockError("the client is closed");
      const sent = now();
      const left = Math.max(0, deadline - sent);
      request.wait_blocking = left > 0;
      request.wait_limit_ms = left === Infinity ? 0 : Math.ceil(left);
      let asked = Infinity;
      let reply;
      try {
        await this._connected(address, isRepeated ? LONG_WAIT : this._replyTimeout);
        asked = now();
        reply = await this._call(address, "RecordLock", request, left + this._replyTimeout, signal);
      } catch (error) {
        if (error.isQueued && now() >= asked + LONG_WAIT) {
          failures = 0; // it has waited well until now
          isRepeated = false;
        }
        isRepeated = !isRepeated && asked < Infinity && mayHaveAnswered(error);
        if (isRepeated) continue; // ask the same one: it knows the request, and gives the same lease
        index += 1;
        failures += 1;
        if (failures === 1 && deadline === Infinity) giveUp = now() + this._replyTimeout;
        const isRound = failures >= this._addresses.length;
        const pause = isRound ? Math.random() * LONGEST_PAUSE : 0;
        if (!RETRIED.includes(error.code) || (isRound && now() + pause > giveUp)) throw error;
        await sleep(pause, undefined, { signal });
        continue;
      }
      this._preferred = index;
      if (reply.acquired) return new Lease(this, address, resource, reply, onReleaseRequested);
      if (now() >= deadline || now() < sent + LONG_WAIT) throw new (wait ? LockTimeout : LockBusy)(reply.detail);
      failures = 0;
      isRepeated = false;
    }
  }
}

class Lease {
  constructor(client, address, resource, reply, onReleaseRequested) {
    this.resource = resource;
    this.token = reply.fencing_token;
    this.path = reply.acquired_znode_path;
    this.signedToken = reply.signed_token;
    this.releaseRequested = "";
    this._id = reply.lease_id;
    this._client = client;
    this._address = address;
    this._onReleaseRequested = onReleaseRequested;
    this._lost = new AbortController();
    this._isOver = false; // lost, or released
    this._until = now() + Number(reply.lease_duration_ms) * USABLE; // only a guess, as the request may have waited
    this._stream = null;
    this._stub = null; // of the stream
    this._unansweredSince = Infinity; // the first request on the stream that has no answer yet
    this._timer = null;
  }

  get remaining() {
    return this._isOver ? 0 : Math.max(0, this._until - now());
  }

  get signal() {
    this._askClock();
    return this._lost.signal;
  }

  check() {
    this.signal.throwIfAborted();
    if (this._isOver) throw new ZkLockError(`the lock ${this.resource} was released`);
  }

  // Notice that the lease has ended: no timer says so while the event loop is blocked.
  _askClock() {
    if (!this._isOver && !this.remaining) this._runOut();
  }

  // Wait until it is certain when the lease ends: the first answer to a keep-alive says so.
  async _begin() {
    if (this._client._closed) this._lose("the client was closed");
    this.signal.throwIfAborted();
    this._client._leases.add(this);
    await new Promise((resolve) => {
      this._confirm = resolve;
      this._keep();
    });
    this.signal.throwIfAborted();
  }

  _keep() {
    const left = this.remaining;
    if (!left) return this._runOut();
    if (this._stream && now() >= this._unansweredSince + SHORTEST_SILENCE) this._reconnect();
    if (!this._stream) this._open();
    this._unansweredSince = Math.min(this._unansweredSince, now());
    this._stream.write({ lease_id: this._id, sent_at: Math.floor(now()) });
    this._plan(Math.min(left, Math.max(left / 3, SHORTEST_PAUSE)));
  }

  _plan(pause) {
    clearTimeout(this._timer);
    this._timer = setTimeout(() => this._keep(), pause);
  }

  _reconnect() {
    this._client._leave(this._address, this._stub);
    this._endStream();
  }

  _open() {
    this._stub = this._client._stub(this._address);
    this._unansweredSince = Infinity;
    const stream = (this._stream = this._stub.KeepAlive(this._client._metadata));
    stream.on("data", (state) => {
      if (this._stream === stream) this._onState(state);
    });
    stream.on("error", () => {}); // the status says it, too
    stream.on("status", ({ metadata }) => {
      if (this._stream !== stream) return;
      this._stream = null;
      this._follow(metadata);
      this._plan(Math.min(this.remaining, SHORTEST_PAUSE)); // open another one
    });
  }

  // If another coordinator has the lease, go to the address that this one names.
  _follow(metadata) {
    if (hint(metadata, "zklock-code") === "lease-elsewhere") {
      this._address = hint(metadata, "zklock-address") || this._address;
    }
  }

  _onState(state) {
    this._unansweredSince = Infinity;
    if (state.state === "STATE_OVER") return this._lose(state.detail);
    if (!this.remaining) return this._runOut();
    const until = Number(state.sent_at) + Number(state.lease_duration_ms) * USABLE;
    this._until = this._isCertain ? Math.max(this._until, until) : until;
    this._isCertain = true;
    this._confirm();
    if (state.release_requested && !this.releaseRequested) {
      this.releaseRequested = state.detail;
      this._onReleaseRequested?.(state.detail, this);
    }
  }

  // Ask another coordinator for the next lease: this one may be frozen.
  _avoid() {
    const { _client: client } = this;
    if (client._addresses[client._preferred] === this._address) {
      client._preferred = (client._preferred + 1) % client._addresses.length;
    }
  }

  _runOut() {
    this._avoid();
    this._lose(this.releaseRequested ? `${RAN_OUT} (${this.releaseRequested})` : RAN_OUT);
  }

  _lose(reason) {
    this._end();
    this._abort(reason);
    this._confirm?.();
  }

  _abort(reason) {
    this._lost.abort(new LockLost(`the lock ${this.resource} was lost: ${reason}`));
  }

  _end() {
    this._isOver = true;
    clearTimeout(this._timer);
    this._endStream();
    this._client._leases.delete(this);
  }

  _endStream() {
    const stream = this._stream;
    this._stream = null;
    stream?.cancel();
  }

  // Release it, within the rest of the lease. If it is over, do nothing.
  async _release() {
    this._askClock();
    if (this._isOver) return;
    const deadline = now() + Math.min(this.remaining, this._client._replyTimeout);
    this._end();
    let unclear = false;
    for (let tries = 0; tries < RELEASES && now() < deadline; tries += 1) {
      try {
        const reply = await this._client._call(this._address, "ReleaseLock", { lease_id: this._id }, deadline - now());
        if (!reply.released && !unclear) this._abort(reply.detail); // otherwise an earlier try may have released it
        return;
      } catch (error) {
        if (!RETRIED.includes(error.code)) return; // the lock is free when its lease is over
        this._follow(error.cause.metadata);
        if (!error.code) {
          unclear = true;
          this._avoid();
        }
        await sleep(SHORTEST_PAUSE);
      }
    }
  }
}

module.exports = {
  ZkLockClient,
  ZkLockError,
  LockBusy,
  LockTimeout,
  LockLost,
  LeaseRefused,
  CoordinatorUnavailable,
};
