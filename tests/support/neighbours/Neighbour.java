import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
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
import org.apache.curator.framework.recipes.locks.Revoker;
import org.apache.curator.retry.RetryNTimes;

/**
 * Apache Curator's recipes, as they are, for a process that writes commands to the standard input: see protocol.py.
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
        System.exit(0); // the process that started this is gone; the server ends the session
    }

    private static synchronized void answer(String number, String how, Object what) {
        System.out.println(number + " " + how + " " + String.valueOf(what).replace('\n', ' '));
        System.out.flush();
    }

    private static class Actor {
        private final ExecutorService thread = Executors.newSingleThreadExecutor();
        private final Map<String, Object> objects = new HashMap<>();
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

        private Object act(String verb, String kind, String path, String argument, String id) throws Exception {
            switch (verb) {
                case "acquire":
                    return acquire(kind, path, Long.parseLong(argument), id);
                case "release":
                    if (leads(kind)) {
                        ((Leading) objects.get(kind + path)).leave();
                    } else {
                        lock(kind, path).release();
                    }
                    return true;
                case "time": // nanoseconds of an acquire and a release
                    long began = System.nanoTime();
                    mutex(kind, path).acquire();
                    mutex(kind, path).release();
                    return System.nanoTime() - began;
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
                default:
                    throw new IllegalArgumentException(verb);
            }
        }

        private boolean leads(String kind) {
            return kind.equals("selector") || kind.equals("latch");
        }

        private boolean acquire(String kind, String path, long wait, String id) throws Exception {
            if (leads(kind)) { // one candidate for each time
                Leading candidate = Leading.of(kind, client, path, id);
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

        private Object sides(String path) { // one object for both sides, as a read inside a write wants it
            return pairs.computeIfAbsent(path, key -> new InterProcessReadWriteLock(client, path));
        }
    }
}
