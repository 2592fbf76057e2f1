// Hold a lock of a django-zklock coordinator while a function runs.
//
// Copy lock_coordinator.proto to this directory, and run `npm install`. Then try it, until Enter is pressed:
//     node lock.js 127.0.0.1:50051 invoices/2026-11
"use strict";

const path = require("node:path");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const definition = loader.loadSync(path.join(__dirname, "lock_coordinator.proto"), {
  keepCase: true,
  longs: String, // a fencing token may be too large for a number
  enums: String,
  defaults: true,
});
const { LockCoordinator } = grpc.loadPackageDefinition(definition).zklock.v1;

const now = () => Math.floor(performance.now()); // not the wall clock, which may jump

const call = (client, method, request) =>
  new Promise((resolve, reject) => {
    client[method](request, (error, reply) => (error ? reject(error) : resolve(reply)));
  });

// Call `work({ token, signal })` under a lock. `signal` is aborted when the lock is lost; its `reason` says why.
async function withLock(client, request, work) {
  const lease = await call(client, "RecordLock", request);
  if (!lease.acquired) throw new Error(lease.detail);

  const lost = new AbortController();
  let until = now() + Number(lease.lease_duration_ms); // only a guess, as the request may have waited
  let stream = null;
  let timer = null;
  let confirm;
  const confirmed = new Promise((resolve) => (confirm = resolve));

  function onState(state) {
    if (state.state === "STATE_OVER") {
      lost.abort(new Error(state.detail));
    } else {
      until = Number(state.sent_at) + Number(state.lease_duration_ms);
    }
    confirm();
  }

  function keep() {
    const left = until - now();
    if (left <= 0) {
      lost.abort(new Error("the lease was not kept in time"));
      confirm();
      return;
    }
    if (stream === null) {
      stream = client.KeepAlive();
      stream.on("data", onState);
      stream.on("error", () => (stream = null)); // opened again while the lease lasts
    }
    stream.write({ lease_id: lease.lease_id, sent_at: now() });
    timer = setTimeout(keep, Math.min(left, Math.max(left / 3, 50)));
  }

  keep();
  try {
    await confirmed;
    lost.signal.throwIfAborted();
    const result = await work({ token: lease.fencing_token, signal: lost.signal });
    lost.signal.throwIfAborted();
    return result;
  } finally {
    clearTimeout(timer);
    if (stream !== null) stream.end();
    await call(client, "ReleaseLock", { lease_id: lease.lease_id }).catch(() => {}); // it runs out
  }
}

module.exports = { LockCoordinator, withLock };

if (require.main === module) {
  const [address, resource, term = "10000"] = process.argv.slice(2);
  const client = new LockCoordinator(address, grpc.credentials.createInsecure(), {
    "grpc.keepalive_time_ms": 10000, // a call that waits notices that its coordinator is gone
    "grpc.keepalive_timeout_ms": 5000,
  });
  const request = {
    resource_path: resource,
    client_id: `lock.js:${process.pid}`,
    session_timeout_ms: term,
    wait_blocking: true,
  };
  withLock(client, request, async ({ token, signal }) => {
    console.log(`held, token ${token}`);
    await new Promise((resolve) => {
      process.stdin.once("data", resolve);
      signal.addEventListener("abort", resolve);
    });
  })
    .then(() => console.log("released"))
    .catch((error) => {
      console.log(`lost: ${error.message}`);
      process.exitCode = 1;
    })
    .finally(() => {
      process.stdin.destroy();
      client.close();
    });
}
