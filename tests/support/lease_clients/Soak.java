import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicInteger;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Metadata;
import io.grpc.stub.MetadataUtils;
import zklock.client.ZkLockClient;

/** Lock and release in many tasks, and write a history; soak.py explains the arguments. */
public final class Soak {
  private static final int LOOK = 100;
  private static final AtomicInteger OPS = new AtomicInteger();
  private static String[] arguments;

  public static void main(String[] given) {
    arguments = given;
    double stop = now() + Double.parseDouble(arguments[9]);
    for (int task = 0; task < number(4); task++) {
      int fixed = task;
      new Thread(() -> run(fixed, stop)).start();
    }
  }

  private static int number(int index) {
    return Integer.parseInt(arguments[index]);
  }

  /** On Linux, System.nanoTime is the monotonic clock of the machine. */
  private static double now() {
    return System.nanoTime() / 1e9;
  }

  private static double note(String kind, String about, ZkLockClient.Lease lease, String more) {
    double moment = now();
    if (lease != null) {
      double until = moment + lease.remaining().toNanos() / 1e9;
      more = String.format(Locale.ROOT, ", \"token\": %d, \"until\": %.6f", lease.token, until);
    }
    String line = String.format(Locale.ROOT, "{\"t\": %.6f, \"p\": \"%s\", \"e\": \"%s\"", moment, arguments[2], kind);
    System.out.println(line + about + more + "}");
    return moment;
  }

  private static void run(int task, double stop) {
    var addresses = new ArrayList<>(List.of(arguments[0].split(",")));
    Collections.rotate(addresses, task);
    var headers = new Metadata();
    headers.put(Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER), "Bearer " + arguments[1]);
    var authorization = MetadataUtils.newAttachHeadersInterceptor(headers);
    try (var client = new ZkLockClient(addresses, "soak", (ManagedChannelBuilder<?> channel) ->
        arguments[1].isEmpty() ? channel.usePlaintext() : channel.usePlaintext().intercept(authorization))) {
      while (now() < stop) lock(client, task);
    } catch (InterruptedException interrupted) {
      throw new IllegalStateException(interrupted);
    }
  }

  private static void lock(ZkLockClient client, int task) throws InterruptedException {
    String[] terms = arguments[6].split(",");
    int term = Integer.parseInt(terms[task % terms.length]);
    String key = "k" + (number(3) + task) % number(5);
    String about = String.format(Locale.ROOT, ", \"o\": \"%s/%d\", \"op\": %d, \"key\": \"%s\", \"term\": %.3f",
        arguments[2], task, OPS.incrementAndGet(), key, term / 1000.0);
    var options = new ZkLockClient.Options();
    options.term = Duration.ofMillis(term);
    if (!arguments[7].equals("Infinity")) options.wait = Duration.ofMillis(number(7));
    boolean granted = false;
    note("invoke", about, null, ", \"timeout\": null");
    try (var lease = client.lock(key, options)) {
      granted = true;
      double moment = note("granted", about, lease, "");
      double stop = moment + ThreadLocalRandom.current().nextDouble() * number(8) / 1000;
      while (moment < stop && !lease.remaining().isZero() && lease.releaseRequested().isEmpty()) {
        moment = note("valid", about, lease, "");
        Thread.sleep(LOOK);
      }
      note(lease.remaining().isZero() ? "lost" : "release", about, null, "");
    } catch (ZkLockClient.ZkLockException error) {
      String why = (error.getClass().getSimpleName() + ": " + error.getMessage()).replaceAll("[^ -~]|[\"\\\\]", " ");
      if (!granted) note("refused", about, null, ", \"why\": \"" + why + "\"");
      Thread.sleep(LOOK);
    }
  }
}
