import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMultiLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.locks.Revoker;
import org.apache.curator.framework.recipes.shared.SharedCount;
import org.apache.curator.retry.RetryNTimes;

/**
 * Apache Curator's recipes, as they are, for whoever writes commands to the standard input: see protocol.py.
 *
 * An actor is a thread, as Curator's locks belong to threads, and has objects of its own.
 */
public class Neighbour {
    static final long GLANCE = 150; // milliseconds after which who has not come to lead is taken to stand by

    private static CuratorFramework client;
    private static final Map<String, Actor> actors = new ConcurrentHashMap<>();

    public static void main(String[] arguments) throws Exception {
        client = CuratorFrameworkFactory.newClient(arguments[0], Integer.parseInt(arguments[1]), 10_000, new RetryNTimes(30, 100));
        client.start();
        client.blockUntilConnected();
        answer("0", "ok", "ready");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ");
            actors.computeIfAbsent(words[1], name -> new Actor()).take(words);
        }
        System.exit(0); // whoever started this is gone; the server ends the session
    }

    private static synchronized void answer(String number, String how, Object what) {
        System.out.println(number + " " + how + " " + String.valueOf(what).replace('\n', ' '));
        System.out.flush();
    }

    private static class Actor {
        private final ExecutorService thread = Executors.newSingleThreadExecutor();
        private final Map<String, Object> objects = new HashMap<>();
        private final Map<String, Lease> leases = new HashMap<>();
        private final Map<String, Boolean> revoked = new ConcurrentHashMap<>();

        void take(String[] words) {
            thread.execute(() -> {
                try {
                    answer(words[0], "ok", act(words[2], words[3], words[4], words.length > 5 ? words[5] : "-1", words.length > 6 ? words[6] : ""));
                } catch (Throwable problem) {
                    answer(words[0], "error", problem);
                }
            });
        }

        private Object act(String verb, String kind, String path, String argument, String limit) throws Exception {
            switch (verb) {
                case "acquire":
                    return acquire(kind, path, Long.parseLong(argument), limit);
                case "release":
                    if (kind.equals("semaphore")) {
                        leases.remove(path).close();
                    } else if (leads(kind)) {
                        ((Leading) objects.get(kind + path)).leave();
                    } else {
                        lock(kind, path).release();
                    }
                    return true;
                case "participants":
                    return Leading.shown(Leading.of(kind, client, path, "").participants());
                case "leader":
                    return Leading.shown(Leading.of(kind, client, path, "").leader());
                case "revocable":
                    mutex(kind, path).makeRevocable(lock -> revoked.put(kind + path, true));
                    return true;
                case "revoked":
                    return revoked.getOrDefault(kind + path, false);
                case "revoke": // the path is that of the holder's node
                    Revoker.attemptRevoke(client, path);
                    return true;
                case "count":
                    count(path).setCount(Integer.parseInt(argument));
                    return true;
                default:
                    throw new IllegalArgumentException(verb);
            }
        }

        private boolean leads(String kind) {
            return kind.equals("selector") || kind.equals("latch");
        }

        private boolean acquire(String kind, String path, long wait, String limit) throws Exception {
            if (kind.equals("semaphore")) {
                return lease(path, wait, limit);
            }
            if (leads(kind)) { // one candidate for each time; what else is the limit is its id
                Leading candidate = Leading.of(kind, client, path, limit);
                objects.put(kind + path, candidate);
                return candidate.take(wait);
            }
            return lock(kind, path, wait);
        }

        private boolean lock(String kind, String path, long wait) throws Exception {
            InterProcessLock lock = lock(kind, path);
            if (wait < 0) {
                lock.acquire();
                return true;
            }
            return lock.acquire(wait, TimeUnit.MILLISECONDS);
        }

        private boolean lease(String path, long wait, String limit) throws Exception {
            InterProcessSemaphoreV2 semaphore = (InterProcessSemaphoreV2) objects.get("semaphore" + path);
            if (semaphore == null) { // the limit is a number, or the path of a shared one
                semaphore = limit.startsWith("/") ? new InterProcessSemaphoreV2(client, path, count(limit)) : new InterProcessSemaphoreV2(client, path, Integer.parseInt(limit));
                objects.put("semaphore" + path, semaphore);
            }
            Lease lease;
            if (wait < 0) {
                lease = semaphore.acquire();
            } else {
                Collection<Lease> found = semaphore.acquire(1, wait, TimeUnit.MILLISECONDS);
                lease = found == null ? null : found.iterator().next();
            }
            if (lease != null) {
                leases.put(path, lease);
            }
            return lease != null;
        }

        private InterProcessLock lock(String kind, String path) { // of several, the path is theirs with commas between
            if (!kind.equals("multi")) {
                return mutex(kind, path);
            }
            return (InterProcessLock) objects.computeIfAbsent(kind + path, key -> new InterProcessMultiLock(client, Arrays.asList(path.split(","))));
        }

        private InterProcessMutex mutex(String kind, String path) {
            return (InterProcessMutex) objects.computeIfAbsent(kind + path, key -> {
                if (kind.equals("mutex")) {
                    return new InterProcessMutex(client, path);
                }
                InterProcessReadWriteLock sides = (InterProcessReadWriteLock) sides(path);
                return kind.equals("read") ? sides.readLock() : sides.writeLock();
            });
        }

        private final Map<String, Object> pairs = new HashMap<>();

        private Object sides(String path) { // one object for both sides, as a downgrade wants it
            return pairs.computeIfAbsent(path, key -> new InterProcessReadWriteLock(client, path));
        }

        private SharedCount count(String path) throws Exception {
            SharedCount found = (SharedCount) objects.get("count" + path);
            if (found == null) {
                found = new SharedCount(client, path, 1);
                found.start();
                objects.put("count" + path, found);
            }
            return found;
        }
    }
}
