// Hold a lock until a line is read, or the lock is lost: ADDRESSES KEY TERM_MS WAIT_MS, which may be Infinity.
// The same client waits for the lock ALSO, if it is given as the fifth argument.
"use strict";

const readline = require("node:readline");
const { ZkLockClient } = require("zklock-client");

async function main(addresses, key, term, wait, also) {
  const client = new ZkLockClient(addresses.split(","), { clientId: "holder" });
  const input = readline.createInterface({ input: process.stdin });
  const options = {
    term: Number(term),
    wait: Number(wait),
    onReleaseRequested: (reason) => console.log(`wanted ${reason}`),
  };
  if (also) client.withLock(also, {}, async () => console.log("also held"));
  try {
    await client.withLock(key, options, async (lease) => {
      console.log(`held ${lease.token}`);
      await new Promise((resolve) => {
        input.once("line", resolve);
        lease.signal.addEventListener("abort", resolve);
      });
    });
    console.log("released");
  } catch (error) {
    console.log(`${error.name}: ${error.message}`);
  }
  input.close();
  client.close();
}

main(...process.argv.slice(2));
