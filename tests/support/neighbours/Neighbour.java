import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Collection;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
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
                    return kind.equals("semaphore") ? lease(path, Long.parseLong(argument), limit) : lock(kind, path, Long.parseLong(argument));
                case "release":
                    if (kind.equals("semaphore")) {
                        leases.remove(path).close();
                    } else {
                        mutex(kind, path).release();
                    }
                    return true;
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

        private boolean lock(String kind, String path, long wait) throws Exception {
            InterProcessMutex lock = mutex(kind, path);
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
