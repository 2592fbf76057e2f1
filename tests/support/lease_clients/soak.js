// Lock and release in many tasks, and write a history; soak.py explains the arguments.
"use strict";

const { setTimeout: sleep } = require("node:timers/promises");
const { ZkLockClient } = require("zklock-client");

const LOOK = 100;
const [addresses, token, name, first, tasks, keys, terms, wait, hold, seconds] = process.argv.slice(2);
let ops = 0;

const now = () => Number(process.hrtime.bigint()) / 1e9;

function note(kind, about, lease, more = {}) {
  const moment = now();
  if (lease) Object.assign(more, { token: Number(lease.token), until: moment + lease.remaining / 1000 });
  console.log(JSON.stringify({ t: moment, p: name, e: kind, ...about, ...more }));
  return moment;
}

async function lock(client, number) {
  const term = Number(terms.split(",")[number % terms.split(",").length]);
  const key = `k${(Number(first) + number) % keys}`;
  const about = { o: `${name}/${number}`, op: ++ops, key, term: term / 1000 };
  let isGranted = false;
  note("invoke", about, null, { timeout: null });
  try {
    await client.withLock(key, { term, wait: Number(wait) }, async (lease) => {
      isGranted = true;
      let moment = note("granted", about, lease);
      const stop = moment + (Math.random() * hold) / 1000;
      while (moment < stop && lease.remaining && !lease.releaseRequested) {
        moment = note("valid", about, lease);
        await sleep(LOOK);
      }
      note(lease.signal.aborted ? "lost" : "release", about);
    });
  } catch (error) {
    if (!isGranted) note("refused", about, null, { why: `${error.name}: ${error.message}` });
    await sleep(LOOK);
  }
}

async function run(number, stop) {
  const all = addresses.split(",");
  const start = number % all.length;
  const client = new ZkLockClient([...all.slice(start), ...all.slice(0, start)], { token });
  while (now() < stop) await lock(client, number);
  client.close();
}

const stop = now() + Number(seconds);
for (let number = 0; number < tasks; number++) run(number, stop);
