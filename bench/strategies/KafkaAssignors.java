import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.metadata.PartitionRecord;
import org.apache.kafka.common.metadata.RegisterBrokerRecord;
import org.apache.kafka.common.metadata.TopicRecord;
import org.apache.kafka.coordinator.common.runtime.KRaftCoordinatorMetadataImage;
import org.apache.kafka.coordinator.group.api.assignor.ConsumerGroupPartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.GroupAssignment;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.RangeAssignor;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;
import org.apache.kafka.coordinator.group.modern.SubscribedTopicDescriberImpl;
import org.apache.kafka.coordinator.group.modern.TopicIds;
import org.apache.kafka.image.MetadataDelta;
import org.apache.kafka.image.MetadataImage;
import org.apache.kafka.image.MetadataProvenance;

/**
 * Runs Kafka's own assignors on problems read from standard input and answers with times and owners.
 *
 * <p>The other end is {@code bench/strategies/kafka_assignors.py}; all numbers are big-endian. Only the call of the
 * assignor is timed: names, maps and the metadata image are made before it, as a coordinator has them already. Nothing
 * is promised about input that makes no sense: the other end is trusted.
 */
public final class KafkaAssignors {
    private static final int NONE = -1;
    private static final int QUIT = 0;
    private static final int PROBLEM = 1;
    private static final int RUN = 2;

    public static void main(String[] arguments) throws IOException {
        var in = new DataInputStream(new BufferedInputStream(System.in, 1 << 16));
        var out = new DataOutputStream(new BufferedOutputStream(System.out, 1 << 16));
        // Whoever logs must not write into the answers.
        System.setOut(System.err);
        Problem problem = null;
        for (int order = in.readInt(); order != QUIT; order = in.readInt()) {
            if (order == PROBLEM) {
                problem = null;
                System.gc();
                problem = Problem.read(in);
            } else if (order == RUN) {
                run(problem, in, out);
            }
        }
    }

    private static void run(Problem problem, DataInputStream in, DataOutputStream out) throws IOException {
        Assignor assignor = switch (in.readInt()) {
            case 0 -> new ServerSide(problem, new UniformAssignor());
            case 1 -> new ServerSide(problem, new RangeAssignor());
            default -> new ClientSide(problem);
        };
        double warmUp = in.readDouble();
        double measure = in.readDouble();
        int rounds = in.readInt();
        try {
            double[] times = time(assignor, warmUp, measure, rounds);
            int[] owner = assignor.owner();
            out.writeInt(times.length);
            for (double milliseconds : times) {
                out.writeDouble(milliseconds);
            }
            for (int member : owner) {
                out.writeInt(member);
            }
        } catch (RuntimeException failure) {
            out.writeInt(0);
            out.writeUTF(failure.toString());
        }
        out.flush();
    }

    /** Milliseconds of each call, after calls for {@code warmUp} seconds; at least one of either. */
    private static double[] time(Assignor assignor, double warmUp, double measure, int rounds) {
        long began = System.nanoTime();
        do {
            assignor.prepare();
            assignor.assign();
        } while (seconds(began) < warmUp);
        var times = new ArrayList<Double>();
        began = System.nanoTime();
        do {
            assignor.prepare();
            long start = System.nanoTime();
            assignor.assign();
            times.add((System.nanoTime() - start) / 1e6);
        } while (times.size() < rounds && seconds(began) < measure);
        return times.stream().mapToDouble(Double::doubleValue).toArray();
    }

    private static double seconds(long since) {
        return (System.nanoTime() - since) / 1e9;
    }

    /** One assignor on one problem, called again and again. */
    private interface Assignor {
        /** What is not timed. */
        void prepare();

        void assign();

        /** Who owns each partition by the last call. */
        int[] owner();
    }

    /** A problem as the strategies see it: members, topics and racks are numbers, partitions lie in one flat array. */
    private record Problem(
        int members,
        int[] partitions,
        int[] offsets,
        int[] owner,
        int[] cohort,
        int[][] wanted,
        int[] rack,
        int[] replicaStarts,
        int[] replicaRacks
    ) {
        static Problem read(DataInputStream in) throws IOException {
            int members = in.readInt();
            int[] partitions = ints(in);
            int[] offsets = new int[partitions.length + 1];
            for (int topic = 0; topic < partitions.length; topic++) {
                offsets[topic + 1] = offsets[topic] + partitions[topic];
            }
            int[] owner = ints(in);
            int[] cohort = ints(in);
            int[][] wanted = new int[in.readInt()][];
            for (int number = 0; number < wanted.length; number++) {
                wanted[number] = ints(in);
            }
            return new Problem(members, partitions, offsets, owner, cohort, wanted, ints(in), ints(in), ints(in));
        }

        private static int[] ints(DataInputStream in) throws IOException {
            byte[] bytes = new byte[4 * in.readInt()];
            in.readFully(bytes);
            int[] numbers = new int[bytes.length / 4];
            ByteBuffer.wrap(bytes).asIntBuffer().get(numbers);
            return numbers;
        }

        boolean hasRacks() {
            return replicaStarts.length > 0;
        }

        /** Racks of a partition's replicas; one broker stands in each rack and has its number. */
        List<Integer> replicas(int flat) {
            if (!hasRacks()) {
                return List.of(0);
            }
            return Arrays.stream(replicaRacks, replicaStarts[flat], replicaStarts[flat + 1]).boxed().toList();
        }

        Optional<String> rackOf(int member) {
            return rack.length == 0 || rack[member] == NONE ? Optional.empty() : Optional.of(rackName(rack[member]));
        }

        int brokers() {
            return 1 + Arrays.stream(replicaRacks).max().orElse(0);
        }

        static String rackName(int rack) {
            return "rack-" + rack;
        }

        /** Names sort as the numbers do. */
        static String memberName(int member) {
            return String.format("member-%06d", member);
        }

        static String topicName(int topic) {
            return String.format("topic-%06d", topic);
        }

        /** Of a member or a topic. */
        static int number(String name) {
            return Integer.parseInt(name.substring(name.indexOf('-') + 1));
        }
    }

    /** An assignor of the group coordinator, given what the coordinator would give it. */
    private static final class ServerSide implements Assignor {
        private final Problem problem;
        private final ConsumerGroupPartitionAssignor assignor;
        private final Map<Uuid, Integer> topicNumbers = new HashMap<>();
        private final TopicIds.CachedTopicResolver resolver;
        private final SubscribedTopicDescriberImpl describer;
        private final GroupSpecImpl spec;
        private GroupAssignment result;

        ServerSide(Problem problem, ConsumerGroupPartitionAssignor assignor) {
            this.problem = problem;
            this.assignor = assignor;
            Uuid[] ids = topicIds(problem.partitions.length);
            for (int topic = 0; topic < ids.length; topic++) {
                topicNumbers.put(ids[topic], topic);
            }
            var image = new KRaftCoordinatorMetadataImage(image(problem, ids));
            resolver = new TopicIds.CachedTopicResolver(image);
            describer = new SubscribedTopicDescriberImpl(image);
            spec = spec(ids);
        }

        private static Uuid[] topicIds(int count) {
            var random = new Random(7);
            var ids = new Uuid[count];
            for (int topic = 0; topic < count; topic++) {
                ids[topic] = new Uuid(random.nextLong(), random.nextLong());
            }
            return ids;
        }

        private static MetadataImage image(Problem problem, Uuid[] ids) {
            var delta = new MetadataDelta.Builder().setImage(MetadataImage.EMPTY).build();
            for (int broker = 0; broker < problem.brokers(); broker++) {
                delta.replay(new RegisterBrokerRecord().setBrokerId(broker).setRack(Problem.rackName(broker)));
            }
            for (int topic = 0; topic < ids.length; topic++) {
                delta.replay(new TopicRecord().setTopicId(ids[topic]).setName(Problem.topicName(topic)));
                for (int partition = 0; partition < problem.partitions[topic]; partition++) {
                    delta.replay(new PartitionRecord()
                        .setTopicId(ids[topic])
                        .setPartitionId(partition)
                        .setReplicas(problem.replicas(problem.offsets[topic] + partition)));
                }
            }
            return delta.apply(MetadataProvenance.EMPTY);
        }

        private GroupSpecImpl spec(Uuid[] ids) {
            var owned = new ArrayList<Map<Uuid, Set<Integer>>>();
            var names = new String[problem.members];
            for (int member = 0; member < problem.members; member++) {
                owned.add(new HashMap<>());
                names[member] = Problem.memberName(member);
            }
            var owners = new HashMap<Uuid, Map<Integer, String>>();
            for (int topic = 0; topic < ids.length; topic++) {
                for (int flat = problem.offsets[topic]; flat < problem.offsets[topic + 1]; flat++) {
                    int member = problem.owner[flat];
                    if (member != NONE) {
                        int partition = flat - problem.offsets[topic];
                        owned.get(member).computeIfAbsent(ids[topic], id -> new HashSet<>()).add(partition);
                        owners.computeIfAbsent(ids[topic], id -> new HashMap<>()).put(partition, names[member]);
                    }
                }
            }
            var topics = Arrays.stream(problem.wanted).map(this::topicNames).toList();
            var members = new HashMap<String, MemberSubscriptionAndAssignmentImpl>();
            for (int member = 0; member < problem.members; member++) {
                members.put(names[member], new MemberSubscriptionAndAssignmentImpl(
                    problem.rackOf(member),
                    Optional.empty(),
                    new TopicIds(topics.get(problem.cohort[member]), resolver),
                    owned.get(member).isEmpty() ? Assignment.EMPTY : new Assignment(owned.get(member))));
            }
            var type = topics.size() == 1 ? SubscriptionType.HOMOGENEOUS : SubscriptionType.HETEROGENEOUS;
            return new GroupSpecImpl(members, type, owners);
        }

        private Set<String> topicNames(int[] topics) {
            var names = new HashSet<String>();
            Arrays.stream(topics).forEach(topic -> names.add(Problem.topicName(topic)));
            return names;
        }

        @Override
        public void prepare() {
            // A coordinator has a new resolver for each assignment.
            resolver.clear();
        }

        @Override
        public void assign() {
            result = assignor.assign(spec, describer);
        }

        @Override
        public int[] owner() {
            int[] owner = new int[problem.owner.length];
            Arrays.fill(owner, NONE);
            result.members().forEach((name, assignment) -> assignment.partitions().forEach((id, partitions) -> {
                int start = problem.offsets[topicNumbers.get(id)];
                partitions.forEach(partition -> owner[start + partition] = Problem.number(name));
            }));
            return owner;
        }
    }

    /** The consumer's assignor, which takes as many calls as there are rounds of the protocol; the first is timed. */
    private static final class ClientSide implements Assignor {
        private static final int MOST_ROUNDS = 6;

        private final Problem problem;
        private final Map<String, List<PartitionInfo>> topics = new HashMap<>();
        private final List<List<String>> wanted = new ArrayList<>();
        private CooperativeStickyAssignor assignor;
        private Map<String, Subscription> subscriptions;
        private Map<String, List<TopicPartition>> result;

        ClientSide(Problem problem) {
            this.problem = problem;
            var brokers = new Node[problem.brokers()];
            for (int broker = 0; broker < brokers.length; broker++) {
                String rack = problem.hasRacks() ? Problem.rackName(broker) : null;
                brokers[broker] = new Node(broker, "localhost", 9092, rack);
            }
            for (int topic = 0; topic < problem.partitions.length; topic++) {
                var infos = new ArrayList<PartitionInfo>();
                for (int flat = problem.offsets[topic]; flat < problem.offsets[topic + 1]; flat++) {
                    Node[] nodes = problem.replicas(flat).stream().map(broker -> brokers[broker]).toArray(Node[]::new);
                    int partition = flat - problem.offsets[topic];
                    infos.add(new PartitionInfo(Problem.topicName(topic), partition, nodes[0], nodes, nodes));
                }
                topics.put(Problem.topicName(topic), infos);
            }
            Arrays.stream(problem.wanted).forEach(cohort ->
                wanted.add(Arrays.stream(cohort).mapToObj(Problem::topicName).toList()));
            subscriptions = subscriptions(problem.owner, 1);
        }

        private Map<String, Subscription> subscriptions(int[] owner, int generation) {
            var owned = new ArrayList<List<TopicPartition>>();
            for (int member = 0; member < problem.members; member++) {
                owned.add(new ArrayList<>());
            }
            for (int topic = 0; topic < problem.partitions.length; topic++) {
                for (int flat = problem.offsets[topic]; flat < problem.offsets[topic + 1]; flat++) {
                    if (owner[flat] != NONE) {
                        int partition = flat - problem.offsets[topic];
                        owned.get(owner[flat]).add(new TopicPartition(Problem.topicName(topic), partition));
                    }
                }
            }
            var all = new HashMap<String, Subscription>();
            for (int member = 0; member < problem.members; member++) {
                    var topicNames = wanted.get(problem.cohort[member]);
                all.put(Problem.memberName(member),
                    new Subscription(topicNames, null, owned.get(member), generation, problem.rackOf(member)));
            }
            return all;
        }

        @Override
        public void prepare() {
            assignor = new CooperativeStickyAssignor();
        }

        @Override
        public void assign() {
            result = assignor.assignPartitions(topics, subscriptions);
        }

        @Override
        public int[] owner() {
            int[] owner = given();
            for (int round = 2; round <= MOST_ROUNDS && Arrays.stream(owner).anyMatch(who -> who == NONE); round++) {
                // What changes hands is withheld until its owner has let go: the next round gives it out.
                subscriptions = subscriptions(owner, round);
                prepare();
                assign();
                owner = given();
            }
            return owner;
        }

        private int[] given() {
            int[] owner = new int[problem.owner.length];
            Arrays.fill(owner, NONE);
            result.forEach((name, partitions) -> partitions.forEach(partition ->
                owner[problem.offsets[Problem.number(partition.topic())] + partition.partition()] =
                    Problem.number(name)));
            return owner;
        }
    }
}
