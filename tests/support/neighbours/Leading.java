import java.util.Collection;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;
import org.apache.curator.framework.recipes.leader.Participant;

/** One of Curator's candidates under the verbs of a lock; it is for one lead, or one try. */
interface Leading {
    /** Waits for the lead for so many milliseconds, less than 0: for ever; who does not get it is out of the queue after that. */
    boolean take(long wait) throws Exception;

    /** Lets the lead go, and returns when it has. */
    void leave() throws Exception;

    Collection<Participant> participants() throws Exception;

    Participant leader() throws Exception;

    static Leading of(String kind, CuratorFramework client, String path, String id) {
        return kind.equals("selector") ? new Selected(client, path, id) : new Latched(client, path, id);
    }

    static String shown(Collection<Participant> participants) {
        return participants.stream().map(Leading::shown).collect(Collectors.joining("\t"));
    }

    static String shown(Participant participant) {
        return (participant.isLeader() ? "leads:" : "waits:") + participant.getId();
    }

    class Selected extends LeaderSelectorListenerAdapter implements Leading {
        private final ExecutorService thread = Executors.newSingleThreadExecutor();
        private final CountDownLatch elected = new CountDownLatch(1);
        private final CountDownLatch over = new CountDownLatch(1);
        private final LeaderSelector selector;

        Selected(CuratorFramework client, String path, String id) {
            selector = new LeaderSelector(client, path, thread, this);
            selector.setId(id);
        }

        @Override
        public void takeLeadership(CuratorFramework client) throws Exception {
            elected.countDown();
            over.await();
        }

        @Override
        public boolean take(long wait) throws Exception {
            selector.start();
            if (elected.await(wait < 0 ? Long.MAX_VALUE : Math.max(wait, Neighbour.GLANCE), TimeUnit.MILLISECONDS)) {
                return true;
            }
            selector.close();
            end();
            return false;
        }

        @Override
        public void leave() throws Exception {
            over.countDown();
            end();
            selector.close();
        }

        private void end() throws InterruptedException {
            thread.shutdown();
            thread.awaitTermination(20, TimeUnit.SECONDS);
        }

        @Override
        public Collection<Participant> participants() throws Exception {
            return selector.getParticipants();
        }

        @Override
        public Participant leader() throws Exception {
            return selector.getLeader();
        }
    }

    class Latched implements Leading {
        private final LeaderLatch latch;

        Latched(CuratorFramework client, String path, String id) {
            latch = new LeaderLatch(client, path, id);
        }

        @Override
        public boolean take(long wait) throws Exception {
            latch.start();
            if (wait < 0) {
                latch.await();
                return true;
            }
            boolean taken = latch.await(Math.max(wait, Neighbour.GLANCE), TimeUnit.MILLISECONDS);
            if (!taken) {
                latch.close();
            }
            return taken;
        }

        @Override
        public void leave() throws Exception {
            latch.close();
        }

        @Override
        public Collection<Participant> participants() throws Exception {
            return latch.getParticipants();
        }

        @Override
        public Participant leader() throws Exception {
            return latch.getLeader();
        }
    }
}
