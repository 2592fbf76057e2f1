import type { ChannelCredentials } from "@grpc/grpc-js";

export interface ClientOptions {
  /** Of gRPC; by default plain text. */
  credentials?: ChannelCredentials;
  /** A bearer token of the coordinator. */
  token?: string;
  /** The name that operators and others in the queue see; by default "program@host:pid". */
  clientId?: string;
  /** Milliseconds that the coordinators have to answer, apart from the wait for the lock; 5000 by default. */
  replyTimeout?: number;
}

export interface LockOptions {
  /** Milliseconds after the last message of this client until the lease ends; 10000 by default. The client renews it. */
  term?: number;
  /** Milliseconds to wait for the lock; 0 does not wait. Without a limit by default. */
  wait?: number;
  kind?: "lock" | "read" | "write" | "semaphore";
  /** The number of permits of a semaphore. */
  limit?: number;
  /** Whether to get a signed token, too. */
  signedToken?: boolean;
  /** Abort it to leave the queue. */
  signal?: AbortSignal;
  /** Called once if an operator, or a coordinator that is about to end, wants the lock back. */
  onReleaseRequested?: (reason: string, lease: Lease) => void;
}

export interface Lease {
  readonly resource: string;
  /** The fencing token, a decimal number. It rises with each grant of the lock. */
  readonly token: string;
  /** The path of the znode. */
  readonly path: string;
  /** The signed token, if it was asked for. */
  readonly signedToken: string;
  /** Aborted when the lock is lost; while work blocks the event loop, when you read it. The reason is a `LockLost`. */
  readonly signal: AbortSignal;
  /** Why the lock is wanted back. Empty while nobody wants it. */
  readonly releaseRequested: string;
  /** Milliseconds for which the lock may be used, even if the lease is not kept any longer; 0 if it is over. */
  readonly remaining: number;
  /** Throw `LockLost` if the lock is lost, or another `ZkLockError` if it was released. */
  check(): void;
}

/** Locks from a coordinator. Addresses are "host:port"; those that are silent or refuse are left for the others. */
export class ZkLockClient {
  constructor(addresses: string | string[], options?: ClientOptions);
  /**
   * Call `work` while the lock is held, and return its result.
   *
   * Rejects with `LockBusy`, `LockTimeout`, `LeaseRefused`, `CoordinatorUnavailable`, or `LockLost` at the end of
   * `work` if the lock was lost. Work that blocks the event loop for longer than the lease loses the lock.
   */
  withLock<T>(resource: string, options: LockOptions, work: (lease: Lease) => T | Promise<T>): Promise<T>;
  /** End all connections. Leases that are still held are lost, and calls that wait for a lock fail. */
  close(): void;
}

/** The root of the errors. `code` is the coordinator's word for the reason. */
export class ZkLockError extends Error {
  readonly code: string;
}
export class LockBusy extends ZkLockError {}
export class LockTimeout extends ZkLockError {}
export class LockLost extends ZkLockError {}
export class LeaseRefused extends ZkLockError {}
export class CoordinatorUnavailable extends ZkLockError {}
