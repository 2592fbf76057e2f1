import java.time.Duration;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import io.grpc.ManagedChannelBuilder;
import zklock.client.ZkLockClient;

/**
 * Hold a lock until a line is read, or the lock is lost: ADDRESSES KEY TERM_MS WAIT_MS, which may be Infinity.
 * The same client waits for the lock ALSO, if it is given as the fifth argument.
 */
public final class Hold {
  public static void main(String[] arguments) throws Exception {
    var ended = new CountDownLatch(1);
    var main = Thread.currentThread();
    var reader = new Thread(() -> {
      if ("interrupt".equals(read())) main.interrupt();
      ended.countDown();
    });
    reader.setDaemon(true);
    reader.start();
    var options = new ZkLockClient.Options();
    options.term = Duration.ofMillis(Long.parseLong(arguments[2]));
    if (!arguments[3].equals("Infinity")) options.wait = Duration.ofMillis(Long.parseLong(arguments[3]));
    options.onLost = reason -> ended.countDown();
    options.onReleaseRequested = reason -> System.out.println("wanted " + reason);
    var addresses = List.of(arguments[0].split(","));
    try (var client = new ZkLockClient(addresses, "holder", ManagedChannelBuilder::usePlaintext)) {
      if (arguments.length > 4) new Thread(() -> waitFor(client, arguments[4])).start();
      try (var lease = client.lock(arguments[1], options)) {
        System.out.println("held " + lease.token);
        ended.await();
      }
      System.out.println("released");
    } catch (InterruptedException interrupted) {
      System.out.println("interrupted");
    } catch (ZkLockClient.ZkLockException error) {
      System.out.println(error.getClass().getSimpleName().replace("Exception", "") + ": " + error.getMessage());
    }
  }

  private static void waitFor(ZkLockClient client, String key) {
    try (var lease = client.lock(key, new ZkLockClient.Options())) {
      System.out.println("also held");
    } catch (InterruptedException interrupted) {
      throw new IllegalStateException(interrupted);
    }
  }

  private static String read() {
    try {
      return new java.io.BufferedReader(new java.io.InputStreamReader(System.in)).readLine();
    } catch (java.io.IOException error) {
      return "";
    }
  }
}
